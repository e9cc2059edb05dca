package main

import (
	"fmt"
	"math/rand"
	"time"
)

// A process that was killed, or whose lease ended: what it had may be gone.
type Death struct {
	server        int
	before, after time.Duration
}

// What is done to a node, after a while and for a while.
type Fault struct {
	what  string
	node  *Node
	other *Node
	after time.Duration
	lasts time.Duration
	// A killed server is called lost before it is started again.
	lost bool
}

func (fault Fault) String() string {
	text := fmt.Sprintf("%s %s", fault.what, fault.node.Name())
	if fault.what == "mute" {
		text += " to " + fault.other.Name()
	}
	if fault.lost {
		text += " (lost)"
	}
	return fmt.Sprintf("%s %d..%d ms", text, fault.after.Milliseconds(), (fault.after + fault.lasts).Milliseconds())
}

// One to three faults of different nodes.
func draw(world *World, random *rand.Rand) []Fault {
	var faults []Fault
	order := random.Perm(len(world.Nodes))
	// What has the items is hit in most rounds.
	if random.Intn(4) != 0 {
		servers := world.withItems()
		hit := servers[random.Intn(len(servers))]
		for at, index := range order {
			if world.Nodes[index] == hit {
				order[0], order[at] = order[at], order[0]
			}
		}
	}
	onlyServers := true
	for _, index := range order[:1+random.Intn(3)] {
		node := world.Nodes[index]
		fault := Fault{
			what:  [...]string{"kill", "stop", "cut", "mute"}[random.Intn(4)],
			node:  node,
			after: time.Duration(random.Intn(1500)) * time.Millisecond,
			lasts: time.Duration(200+random.Intn(2500)) * time.Millisecond,
		}
		if fault.what == "mute" {
			for fault.other == nil || fault.other == node {
				fault.other = world.Nodes[random.Intn(len(world.Nodes))]
			}
		}
		onlyServers = onlyServers && node.Role == Server
		faults = append(faults, fault)
	}
	for at := range faults {
		// A coordinator that is stopped or cut off may hear `lost` long after it was said, when the server is back.
		faults[at].lost = onlyServers && faults[at].node.Role == Server && faults[at].what == "kill" && random.Intn(2) == 0
	}
	return faults
}

// Do injects the fault, and heals it. What it says of a server that died is nil for other faults; `lost` calls one lost.
func (fault Fault) Do(now func() time.Duration, lost func(server int)) (*Death, error) {
	time.Sleep(fault.after)
	switch fault.what {
	case "kill":
		death := Death{server: fault.node.Number, before: now()}
		fault.node.Kill()
		death.after = now()
		time.Sleep(fault.lasts)
		if fault.lost {
			lost(fault.node.Number)
		}
		if !fault.node.Role.hasItems() {
			return nil, fault.node.Start()
		}
		return &death, fault.node.Start()
	case "stop":
		fault.node.Stop()
		time.Sleep(fault.lasts)
		fault.node.Continue()
		return nil, nil
	case "cut":
		if err := fault.node.Cut(); err != nil {
			return nil, err
		}
		time.Sleep(fault.lasts)
		return nil, fault.node.Join()
	default:
		if err := fault.node.Mute(fault.other); err != nil {
			return nil, err
		}
		time.Sleep(fault.lasts)
		return nil, fault.node.Unmute(fault.other)
	}
}
