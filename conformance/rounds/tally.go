package main

// A counter of each of several processes. One that died has taken its last counts with it, and begins anew.
type Tally map[*Node]*counted

type counted struct{ last, ever int64 }

// Note takes what a process has counted since it was started.
func (tally Tally) Note(node *Node, count int64) {
	one := tally[node]
	if one == nil {
		one = &counted{}
		tally[node] = one
	}
	if count < one.last {
		one.last = 0
	}
	one.ever += count - one.last
	one.last = count
}

// Ever is what all have counted.
func (tally Tally) Ever() int64 {
	sum := int64(0)
	for _, one := range tally {
		sum += one.ever
	}
	return sum
}
