package main

import (
	"fmt"
	"math"
	"sort"
	"sync"
	"time"
)

// A key whose values are counted: what its one writer stores is the number of the attempt. Each attempt names the cas before it, so that
// one which is late stores nothing, and greater numbers are newer values.
//
// Who reads such a key is told how old it is. That is checked where clients need not be told what one server would have said.

// What a client was told of a key, or has stored. Version 0: nothing is there.
type Seen struct {
	Key            string
	Version        int
	Stored         bool
	Call, Answered time.Duration
}

// A client to which time may not go back, in the order in which it was answered.
type Session struct {
	name string
	seen []Seen
}

// What is stored, by whom it was seen, and when.
type Versions struct {
	mutex    sync.Mutex
	sessions []*Session
	// By key and version: when the attempt began.
	tried map[string][]time.Duration
}

func NewVersions() *Versions { return &Versions{tried: map[string][]time.Duration{}} }

// Session begins one; it is used by one goroutine.
func (versions *Versions) Session(name string) *Session {
	session := &Session{name: name}
	versions.mutex.Lock()
	defer versions.mutex.Unlock()
	versions.sessions = append(versions.sessions, session)
	return session
}

// Try begins an attempt to store a key, and numbers it.
func (versions *Versions) Try(key string, now time.Duration) int {
	versions.mutex.Lock()
	defer versions.mutex.Unlock()
	if versions.tried[key] == nil {
		versions.tried[key] = []time.Duration{0}
	}
	versions.tried[key] = append(versions.tried[key], now)
	return len(versions.tried[key]) - 1
}

func (session *Session) Add(seen Seen) { session.seen = append(session.seen, seen) }

// What is promised to who reads.
type Promise struct {
	// To everybody at once: one server could have said it. Else to each session.
	ToAll bool
	// What is read was the newest value at some moment so long before it was asked for.
	Age time.Duration
	// An item may be gone: what finds nothing is not looked at.
	MayBeGone bool
}

// Check says what breaks the promise, one text a key and rule at most.
func (versions *Versions) Check(promise Promise) (operations int, violations []string) {
	versions.mutex.Lock()
	defer versions.mutex.Unlock()
	keys := make([]string, 0, len(versions.tried))
	for key := range versions.tried {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	for _, key := range keys {
		known := versions.knownFrom(key, promise.ToAll)
		broken := map[string]bool{}
		breaks := func(session *Session, seen Seen, rule, text string) {
			if !broken[rule] {
				broken[rule] = true
				violations = append(violations, fmt.Sprintf("%s: %s %s\n%s", key, rule, text, lastOf(session, key, seen)))
			}
		}
		for _, session := range versions.sessions {
			newest := Seen{}
			for _, seen := range session.seen {
				if seen.Key != key || seen.Version == 0 && promise.MayBeGone {
					continue
				}
				operations++
				if !seen.Stored {
					// The first newer version that somebody was sure of.
					if after := known[min(seen.Version+1, len(known)-1)]; after+promise.Age < seen.Call {
						breaks(session, seen, "too old:", fmt.Sprintf("%d, and a newer one was there at %s", seen.Version, millis(after)))
					}
					if seen.Version >= len(versions.tried[key]) || versions.tried[key][seen.Version] > seen.Answered {
						breaks(session, seen, "from nowhere:", fmt.Sprintf("%d has not been stored", seen.Version))
					}
				}
				if seen.Version < newest.Version {
					breaks(session, seen, "back in time:", fmt.Sprintf("%d after %d", seen.Version, newest.Version))
				} else {
					newest = seen
				}
			}
		}
	}
	return operations, violations
}

// knownFrom says from when on a version, or a newer one, is known to be there: it was stored, and if that counts, it was read.
func (versions *Versions) knownFrom(key string, reads bool) []time.Duration {
	known := make([]time.Duration, len(versions.tried[key])+1)
	for at := range known {
		known[at] = math.MaxInt64 / 2
	}
	for _, session := range versions.sessions {
		for _, seen := range session.seen {
			if seen.Key == key && (seen.Stored || reads) && seen.Version < len(known) {
				known[seen.Version] = min(known[seen.Version], seen.Answered)
			}
		}
	}
	for at := len(known) - 2; at >= 0; at-- {
		known[at] = min(known[at], known[at+1])
	}
	return known
}

// lastOf shows what a session has seen of a key, up to this.
func lastOf(session *Session, key string, until Seen) string {
	var lines []string
	for _, seen := range session.seen {
		what := "read"
		if seen.Stored {
			what = "stored"
		}
		if seen.Key == key {
			lines = append(lines, fmt.Sprintf("  %s %s ms  %s %s %d", millis(seen.Call), millis(seen.Answered), session.name, what, seen.Version))
		}
		if seen == until {
			break
		}
	}
	text := ""
	for _, line := range lines[max(0, len(lines)-6):] {
		text += line + "\n"
	}
	return text
}

func millis(moment time.Duration) string { return fmt.Sprintf("%11.3f", moment.Seconds()*1000) }
