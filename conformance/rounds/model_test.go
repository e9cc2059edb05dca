package main

import (
	"testing"
	"time"
)

// One that was asked and answered, in milliseconds.
type told struct {
	call, answered time.Duration
	in             Input
	out            Output
}

func historyOf(all ...told) *History {
	history := NewHistory()
	for client, one := range all {
		history.Add(client, "k", one.in, one.out, one.call*time.Millisecond, one.answered*time.Millisecond)
	}
	return history
}

func violations(all ...told) int { return len(historyOf(all...).Check().Violations) }

func set(value string, cas uint64) (Input, Output) {
	return Input{Kind: Set, Value: value}, Output{Cas: cas}
}
func got(value string, cas uint64) (Input, Output) {
	return Input{Kind: Get}, Output{Value: value, Cas: cas}
}
func at(call, answered time.Duration, in Input, out Output) told {
	return told{call, answered, in, out}
}
func as(in Input, status Outcome) (Input, Output) { return in, Output{Outcome: status} }

func op(call, answered time.Duration) func(Input, Output) told {
	return func(in Input, out Output) told { return at(call, answered, in, out) }
}

func TestWhatASingleServerCouldHaveDoneIsAllowed(t *testing.T) {
	histories := map[string][]told{
		"a value is read":                          {op(1, 2)(set("a", 7)), op(3, 4)(got("a", 7))},
		"two at a time, in either order":           {op(1, 5)(set("a", 7)), op(2, 4)(set("b", 8)), op(6, 7)(got("a", 7))},
		"an unknown set is executed":               {op(1, 2)(as(Input{Kind: Set, Value: "a"}, Unknown)), op(90, 91)(got("a", 3))},
		"an unknown set is not executed":           {op(1, 2)(as(Input{Kind: Set, Value: "a"}, Unknown)), op(90, 91)(as(Input{Kind: Get}, Missing))},
		"an item is gone with its server":          {op(1, 2)(set("a", 7)), op(3, 4)(as(Input{Kind: Loss}, Done)), op(5, 6)(as(Input{Kind: Get}, Missing))},
		"a server dies that did not have the item": {op(1, 2)(set("a", 7)), op(3, 4)(as(Input{Kind: Loss}, Done)), op(5, 6)(got("a", 7))},
		"a cas that is late":                       {op(1, 2)(set("a", 7)), op(3, 4)(set("b", 8)), op(5, 6)(as(Input{Kind: Cas, Value: "c", Cas: 7}, Exists))},
		"an incr that failed, and was executed":    {op(1, 2)(set("5", 7)), op(3, 4)(as(Input{Kind: Incr}, Unknown)), op(5, 6)(got("6", 0))},
		"what is doubted is gone":                  {op(1, 2)(set("a", 7)), op(3, 9)(as(Input{Kind: Doubt}, Done)), op(5, 6)(as(Input{Kind: Get}, Missing)), op(7, 8)(as(Input{Kind: Incr}, Missing))},
		"what is doubted is there":                 {op(1, 2)(set("a", 7)), op(3, 4)(as(Input{Kind: Doubt}, Done)), op(5, 6)(got("a", 7))},
		"what is doubted is hidden by one proxy":   {op(1, 2)(set("a", 7)), op(3, 4)(as(Input{Kind: Doubt}, Done)), op(5, 6)(got("a", 7)), op(7, 8)(as(Input{Kind: Get}, Missing)), op(9, 10)(got("a", 7))},
		"a delete that was executed long after":    {op(1, 2)(as(Input{Kind: Delete}, Unknown)), op(3, 4)(set("a", 7)), op(5, 6)(as(Input{Kind: Get}, Missing))},
	}
	for name, history := range histories {
		if violations(history...) != 0 {
			t.Errorf("%s: refused", name)
		}
	}
}

func TestACasOfMemcachedMayBeThatOfTheIncrBeside(t *testing.T) {
	torn := func(call, answered time.Duration) []told {
		return []told{op(1, 2)(set("5", 7)), op(3, 6)(Input{Kind: Incr}, Output{Value: "6"}), op(call, answered)(got("5", 8)), op(10, 11)(got("6", 8))}
	}
	if violations(torn(4, 5)...) == 0 {
		t.Error("of a server of ours it is not found")
	}
	for _, one := range []struct{ call, answered, violations int }{{4, 5, 0}, {7, 8, 1}} {
		history := historyOf(torn(time.Duration(one.call), time.Duration(one.answered))...)
		history.ofMemcached = true
		if found := len(history.Check().Violations); found != one.violations {
			t.Errorf("%v: %d violations", one, found)
		}
	}
}

func TestWhatNoSingleServerDoesIsFound(t *testing.T) {
	histories := map[string][]told{
		"an acknowledged set is missing":            {op(1, 2)(set("a", 7)), op(3, 4)(as(Input{Kind: Get}, Missing))},
		"an older value comes after a newer one":    {op(1, 2)(set("a", 7)), op(3, 4)(set("b", 8)), op(5, 6)(got("a", 7))},
		"two readers go back in time":               {op(1, 9)(set("b", 8)), op(0, 1)(set("a", 7)), op(3, 4)(got("b", 8)), op(5, 6)(got("a", 7))},
		"what was deleted comes back":               {op(1, 2)(set("a", 7)), op(3, 4)(as(Input{Kind: Delete}, Done)), op(5, 6)(got("a", 7))},
		"what was lost comes back":                  {op(1, 2)(set("a", 7)), op(3, 4)(as(Input{Kind: Loss}, Done)), op(5, 6)(as(Input{Kind: Get}, Missing)), op(7, 8)(got("a", 7))},
		"an item is missing before its server died": {op(1, 2)(set("a", 7)), op(3, 4)(as(Input{Kind: Get}, Missing)), op(5, 6)(as(Input{Kind: Loss}, Done))},
		"a late cas stores":                         {op(1, 2)(set("a", 7)), op(3, 4)(set("b", 8)), op(5, 6)(Input{Kind: Cas, Value: "c", Cas: 7}, Output{Cas: 9})},
		"what was doubted and gone comes back":      {op(1, 2)(set("a", 7)), op(3, 4)(as(Input{Kind: Doubt}, Done)), op(5, 6)(as(Input{Kind: Delete}, Missing)), op(7, 8)(got("a", 7))},
		"an item is hidden, and an older one shown": {op(1, 2)(set("a", 7)), op(3, 4)(as(Input{Kind: Doubt}, Done)), op(5, 6)(set("b", 8)), op(7, 8)(as(Input{Kind: Get}, Missing)), op(9, 10)(got("a", 7))},
		"an item is hidden, and nobody doubts":      {op(1, 2)(set("a", 7)), op(3, 4)(as(Input{Kind: Get}, Missing)), op(5, 6)(got("a", 7))},
		"an item is missing before it is doubted":   {op(1, 2)(set("a", 7)), op(3, 4)(as(Input{Kind: Get}, Missing)), op(5, 6)(as(Input{Kind: Doubt}, Done))},
		"a doubted item is an older one":            {op(1, 2)(set("a", 7)), op(3, 4)(as(Input{Kind: Doubt}, Done)), op(5, 6)(set("b", 8)), op(7, 8)(got("a", 0))},
		"a cas is given twice":                      {op(1, 2)(set("a", 7)), op(3, 4)(set("b", 7))},
		"an incr is executed twice":                 {op(1, 2)(set("5", 7)), op(3, 4)(Input{Kind: Incr}, Output{Value: "6"}), op(5, 6)(got("7", 0))},
		"a delete finds what is not there":          {op(1, 2)(as(Input{Kind: Delete}, Done))},
	}
	for name, history := range histories {
		if violations(history...) == 0 {
			t.Errorf("%s: not found", name)
		}
	}
}
