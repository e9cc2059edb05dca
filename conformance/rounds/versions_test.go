package main

import (
	"testing"
	"time"
)

const age = 100 * time.Millisecond

// What two sessions have done with one key, of which versions 1 to 3 were tried in the first three milliseconds.
func promised(promise Promise, first, second []Seen) int {
	versions := NewVersions()
	for at := range 3 {
		versions.Try("k", time.Duration(at)*time.Millisecond)
	}
	for name, all := range map[string][]Seen{"first": first, "second": second} {
		session := versions.Session(name)
		for _, seen := range all {
			seen.Key = "k"
			seen.Call *= time.Millisecond
			seen.Answered *= time.Millisecond
			session.Add(seen)
		}
	}
	_, violations := versions.Check(promise)
	return len(violations)
}

func stored(version int, call, answered time.Duration) Seen {
	return Seen{Version: version, Stored: true, Call: call, Answered: answered}
}

func read(version int, call, answered time.Duration) Seen {
	return Seen{Version: version, Call: call, Answered: answered}
}

var (
	toAll  = Promise{ToAll: true}
	toEach = Promise{Age: age}
)

func TestWhatIsPromisedOfVersionsIsAllowed(t *testing.T) {
	for name, one := range map[string]struct {
		promise       Promise
		first, second []Seen
	}{
		"another client reads an old value for a while":   {toEach, []Seen{stored(1, 0, 1), stored(2, 2, 3)}, []Seen{read(1, 103, 104), read(2, 105, 106)}},
		"two clients disagree for a while":                {toEach, []Seen{stored(1, 0, 1), stored(2, 2, 3), read(2, 10, 11)}, []Seen{read(1, 12, 13)}},
		"what nobody knows to be stored is read":          {toAll, []Seen{stored(1, 0, 1)}, []Seen{read(3, 5, 6), read(3, 7, 8)}},
		"a read beside a write, and before it":            {toAll, []Seen{stored(1, 0, 1), stored(2, 2, 9)}, []Seen{read(1, 8, 9)}},
		"nothing is there, where the item may be gone":    {Promise{ToAll: true, MayBeGone: true}, []Seen{stored(1, 0, 1)}, []Seen{read(0, 5, 6)}},
		"nothing is there before anything is known to be": {toAll, nil, []Seen{read(0, 5, 6), read(2, 7, 8)}},
	} {
		if count := promised(one.promise, one.first, one.second); count != 0 {
			t.Errorf("%s: %d violations", name, count)
		}
	}
}

func TestWhatIsNotPromisedOfVersionsIsFound(t *testing.T) {
	for name, one := range map[string]struct {
		promise       Promise
		first, second []Seen
	}{
		"a client goes back in time":              {toEach, []Seen{stored(1, 0, 1)}, []Seen{read(2, 2, 3), read(1, 4, 5)}},
		"a writer does not see its write":         {toEach, []Seen{stored(1, 0, 1), stored(2, 2, 3), read(1, 4, 5)}, nil},
		"a value is too old":                      {toEach, []Seen{stored(1, 0, 1), stored(2, 2, 3)}, []Seen{read(1, 104, 105)}},
		"a value is too old, and newer ones lost": {toEach, []Seen{stored(1, 0, 1), stored(3, 2, 3)}, []Seen{read(2, 104, 105)}},
		"a value is read before it is stored":     {toEach, nil, []Seen{read(3, 0, 1)}},
		"a value that nobody has stored":          {toEach, nil, []Seen{read(4, 8, 9)}},
		"an item is gone":                         {toEach, []Seen{stored(1, 0, 1)}, []Seen{read(0, 104, 105)}},
		"all are to see a write at once":          {toAll, []Seen{stored(1, 0, 1), stored(2, 2, 3)}, []Seen{read(1, 4, 5)}},
		"all are to see what one has seen":        {toAll, []Seen{stored(1, 0, 1), read(2, 2, 3)}, []Seen{read(1, 4, 5)}},
	} {
		if count := promised(one.promise, one.first, one.second); count == 0 {
			t.Errorf("%s: not found", name)
		}
	}
}
