package main

import (
	"fmt"
	"strconv"

	"github.com/anishathalye/porcupine"
)

// What is asked of one key.
type Kind int

const (
	Get Kind = iota
	Set
	Cas
	Delete
	Incr
	// A process that may have had the key has died: the item may be gone with it.
	Loss
	// Of versions alone: a Get that only the key's owner answers, and a Set if nothing is there.
	GetHome
	Add
	// From here on the item may be gone at any moment: a proxy deletes what was written with an unknown outcome. And a get may miss
	// though the item is there: until the second deletion this proxy shows it to nobody, and the others know nothing of that.
	Doubt
)

func (kind Kind) String() string {
	return [...]string{"get", "set", "cas", "delete", "incr", "loss", "get at home", "add", "doubt"}[kind]
}

// What was answered.
type Outcome int

const (
	Done Outcome = iota
	Missing
	// The item is there, and its cas is another one.
	Exists
	// An error, or no answer: executed at some moment since it was asked, or never.
	Unknown
)

func (status Outcome) String() string {
	return [...]string{"done", "missing", "exists", "unknown"}[status]
}

type Input struct {
	Kind  Kind
	Value string
	// Of a Cas: what the item is to have.
	Cas uint64
	// Of a Get: the cas is not asked for, so that a proxy's copy may answer.
	Plain bool
}

type Output struct {
	Outcome Outcome
	Value   string
	// That the item has then; 0 if the answer does not say.
	Cas uint64
	// What an error said.
	Error string
}

// One key's item.
type Item struct {
	Present bool
	Value   string
	// 0 while nobody was told it.
	Cas uint64
	// It may be gone at any moment, or be hidden from gets.
	Doubted bool
}

func (item Item) mayHave(cas uint64) bool {
	return cas == 0 || item.Cas == 0 || item.Cas == cas
}

// step has all items that there may be after an operation with this answer; none if it cannot be.
func step(before Item, in Input, out Output) []Item {
	after := stepOf(before, in, out)
	if before.Doubted && before.Present {
		after = append(after, stepOf(Item{}, in, out)...)
		if in.Kind == Get && out.Outcome == Missing {
			after = append(after, before)
		}
	}
	for at := range after {
		after[at].Doubted = before.Doubted || in.Kind == Doubt
	}
	return after
}

func stepOf(before Item, in Input, out Output) []Item {
	after := []Item{}
	add := func(item Item) { after = append(after, item) }
	switch in.Kind {
	case Loss:
		return []Item{before, {}}
	case Doubt:
		return []Item{before}
	}
	if out.Outcome == Missing {
		if !before.Present && in.Kind != Set {
			add(before)
		}
		return after
	}
	switch in.Kind {
	case Get:
		if before.Present && before.Value == out.Value && before.mayHave(out.Cas) {
			add(Item{Present: true, Value: out.Value, Cas: max(before.Cas, out.Cas)})
		}
	case Set:
		add(Item{Present: true, Value: in.Value, Cas: out.Cas})
	case Cas:
		if before.Present && before.mayHave(in.Cas) && out.Outcome != Exists {
			add(Item{Present: true, Value: in.Value, Cas: out.Cas})
		}
		if before.Present && before.Cas != in.Cas && out.Outcome == Exists || out.Outcome == Unknown {
			add(before)
		}
	case Delete:
		if before.Present || out.Outcome == Unknown {
			add(Item{})
		}
	case Incr:
		number, err := strconv.ParseUint(before.Value, 10, 64)
		more := strconv.FormatUint(number+1, 10)
		switch {
		case before.Present && err == nil && (out.Outcome == Unknown || out.Value == more):
			add(Item{Present: true, Value: more, Cas: out.Cas})
		case out.Outcome == Unknown:
			add(before)
		}
	}
	return after
}

// A register with a cas: what memcached promises of one key.
var register = porcupine.NondeterministicModel{
	Init: func() []interface{} { return []interface{}{Item{}} },
	Step: func(state, input, output interface{}) []interface{} {
		var states []interface{}
		for _, item := range step(state.(Item), input.(Input), output.(Output)) {
			states = append(states, item)
		}
		return states
	},
	Equal: func(one, other interface{}) bool { return one.(Item) == other.(Item) },
	DescribeOperation: func(input, output interface{}) string {
		return describe(input.(Input), output.(Output))
	},
}

func describe(in Input, out Output) string {
	return fmt.Sprintf("%s %s %d -> %s %s %d %s", in.Kind, short(in.Value), in.Cas, out.Outcome, short(out.Value), out.Cas, out.Error)
}

func short(value string) string {
	if len(value) > 24 {
		return value[:24] + "..."
	}
	return value
}
