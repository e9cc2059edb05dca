package main

import (
	"fmt"
	"math"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// A key's operations may come to no end, and their number is what a check costs.
const checkMax = 60 * time.Second

// What clients have asked in a round, and were told, by key.
type History struct {
	mutex sync.Mutex
	keys  map[string][]porcupine.Operation
	// Cas are memcached's: it may die, and give one again, and they are not always those of the values beside them (see untorn).
	ofMemcached bool
}

func NewHistory() *History { return &History{keys: map[string][]porcupine.Operation{}} }

// Add notes an operation. What failed may be executed as long as the history goes on.
func (history *History) Add(client int, key string, in Input, out Output, call, answered time.Duration) {
	if in.Kind == Get && out.Outcome == Unknown {
		return
	}
	if out.Outcome == Unknown {
		answered = never
	}
	history.mutex.Lock()
	defer history.mutex.Unlock()
	history.keys[key] = append(history.keys[key], porcupine.Operation{ClientId: client, Input: in, Output: out, Call: int64(call), Return: int64(answered)})
}

func (history *History) unknown(key string) int {
	history.mutex.Lock()
	defer history.mutex.Unlock()
	count := 0
	for _, operation := range history.keys[key] {
		if operation.Output.(Output).Outcome == Unknown {
			count++
		}
	}
	return count
}

type Verdict struct {
	Operations, Unknown, Undecided int
	// What must not be, one text a key.
	Violations []string
}

// Check looks for an order of each key's operations that a single server could have executed.
func (history *History) Check() Verdict {
	history.mutex.Lock()
	defer history.mutex.Unlock()
	model := register.ToModel()
	var verdict Verdict
	keys := make([]string, 0, len(history.keys))
	for key := range history.keys {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	for _, key := range keys {
		operations := history.keys[key]
		verdict.Operations += len(operations)
		for _, operation := range operations {
			if operation.Output.(Output).Outcome == Unknown {
				verdict.Unknown++
			}
		}
		if history.ofMemcached {
			operations = untorn(operations)
		} else if why := twice(operations); why != "" {
			verdict.Violations = append(verdict.Violations, fmt.Sprintf("%s: %s\n%s", key, why, transcript(operations)))
			continue
		}
		result, info := porcupine.CheckOperationsVerbose(model, operations, checkMax)
		switch result {
		case porcupine.Illegal:
			text := fmt.Sprintf("%s: no order explains this:\n%s  among:\n%s", key, culprit(operations, info), transcript(operations))
			verdict.Violations = append(verdict.Violations, text)
		case porcupine.Unknown:
			verdict.Undecided++
		}
	}
	return verdict
}

// culprit has the answer that comes first of those which the longest order that was found has no place for, with the last ones of that order.
func culprit(operations []porcupine.Operation, info porcupine.LinearizationInfo) string {
	var longest []porcupine.Operation
	for _, order := range info.PartialLinearizationsOperations()[0] {
		if len(order) > len(longest) {
			longest = order
		}
	}
	type name struct {
		client int
		call   int64
	}
	placed := map[name]bool{}
	for _, operation := range longest {
		placed[name{operation.ClientId, operation.Call}] = true
	}
	var first porcupine.Operation
	for _, operation := range operations {
		if !placed[name{operation.ClientId, operation.Call}] && (first.Input == nil || operation.Return < first.Return) {
			first = operation
		}
	}
	last := longest[max(0, len(longest)-5):]
	if first.Input != nil {
		last = append(append([]porcupine.Operation(nil), last...), first)
	}
	return lines(last)
}

// untorn forgets cas that may not be the value's: memcached's incr writes its own into the item that it has just replaced, and whoever is
// reading that one is told the old value with the new cas.
func untorn(operations []porcupine.Operation) []porcupine.Operation {
	result := append([]porcupine.Operation(nil), operations...)
	for at, read := range result {
		in, out := read.Input.(Input), read.Output.(Output)
		if in.Kind != Get || out.Cas == 0 {
			continue
		}
		for _, other := range operations {
			if other.Input.(Input).Kind == Incr && other.Call < read.Return && read.Call < other.Return {
				out.Cas = 0
				result[at].Output = out
			}
		}
	}
	return result
}

// never is when an operation ends that may be executed at any later moment.
const never = time.Duration(math.MaxInt64)

// twice says if a cas was given to two values of a key.
func twice(operations []porcupine.Operation) string {
	values := map[uint64]string{}
	for _, operation := range operations {
		in, out := operation.Input.(Input), operation.Output.(Output)
		value := out.Value
		if in.Kind == Set || in.Kind == Cas {
			value = in.Value
		}
		if out.Cas == 0 {
			continue
		}
		if other, seen := values[out.Cas]; seen && other != value {
			return fmt.Sprintf("cas %d is that of %s and of %s", out.Cas, short(other), short(value))
		}
		values[out.Cas] = value
	}
	return ""
}

func transcript(operations []porcupine.Operation) string {
	sorted := append([]porcupine.Operation(nil), operations...)
	sort.Slice(sorted, func(a, b int) bool { return sorted[a].Call < sorted[b].Call })
	return lines(sorted)
}

func lines(operations []porcupine.Operation) string {
	var text strings.Builder
	for _, one := range operations {
		ends := "      never"
		if one.Return != int64(never) {
			ends = fmt.Sprintf("%11.3f", time.Duration(one.Return).Seconds()*1000)
		}
		fmt.Fprintf(&text, "  %11.3f %s ms  client %2d  %s\n", time.Duration(one.Call).Seconds()*1000, ends, one.ClientId, describe(one.Input.(Input), one.Output.(Output)))
	}
	return text.String()
}
