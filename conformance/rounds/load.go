package main

import (
	"fmt"
	"math/rand"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	clients = 12
	keys    = 40
	// A key whose operations have failed so often gives its place to a new one: each may be executed at any later moment, and
	// what a check costs grows with the number of orders.
	unknownMax = 8
	// Between two operations of a client, at most.
	thinks = 6 * time.Millisecond
)

// Whether faults are at work: then a get may miss since the key's owner cannot be reached, as memcached's clients know it.
type Weather struct {
	mutex    sync.Mutex
	foul     bool
	calmFrom time.Duration
}

func (weather *Weather) Foul() {
	weather.mutex.Lock()
	defer weather.mutex.Unlock()
	weather.foul = true
}

func (weather *Weather) Calm(now time.Duration) {
	weather.mutex.Lock()
	defer weather.mutex.Unlock()
	weather.foul, weather.calmFrom = false, now
}

// WasFoul says whether faults were at work at any moment since `call`.
func (weather *Weather) WasFoul(call time.Duration) bool {
	weather.mutex.Lock()
	defer weather.mutex.Unlock()
	return weather.foul || call <= weather.calmFrom
}

// Clients that ask any server, or any proxy, for any of some keys.
type Load struct {
	// None before proxies.
	cluster *Cluster
	servers []*Node
	// Of the keys so many are hot, the first of them is this: in a cluster they are of one server, and do not change.
	hot      int
	hotFrom  atomic.Int32
	hotOwner int
	// One in so many operations with a hot key is none that clients read it by.
	rareness atomic.Int32
	weather  *Weather
	history  *History
	began    time.Time
	round    int
	names    []atomic.Pointer[string]
	stop     chan struct{}
	done     sync.WaitGroup
	// Of the two: gets that missed in foul weather, errors in calm weather.
	Missed, Hurt atomic.Int64
	// What no server may answer.
	nonsense atomic.Pointer[string]
	numbers  atomic.Int64
}

// NewLoad: `hot` of so many keys are hot; in a cluster they are of the server `hotOwner`.
func NewLoad(round int, cluster *Cluster, servers []*Node, weather *Weather, count, hot, hotOwner int) *Load {
	load := &Load{
		cluster: cluster, servers: servers, weather: weather, history: NewHistory(),
		began: time.Now(), round: round, hot: hot, hotOwner: hotOwner, stop: make(chan struct{}),
		names: make([]atomic.Pointer[string], count),
	}
	load.rareness.Store(20)
	for at := range load.names {
		load.rename(at)
	}
	return load
}

// isHot is of a key's place among the names.
func (load *Load) isHot(at int) bool {
	count := len(load.names)
	return (at-int(load.hotFrom.Load())+count)%count < load.hot
}

// anyHot is the place of a hot key.
func (load *Load) anyHot(random *rand.Rand) int {
	return (int(load.hotFrom.Load()) + random.Intn(load.hot)) % len(load.names)
}

// hotNames are those that are hot at this moment.
func (load *Load) hotNames() []string {
	var names []string
	for at := range load.hot {
		names = append(names, *load.names[(int(load.hotFrom.Load())+at)%len(load.names)].Load())
	}
	return names
}

// Now is the one clock of a history.
func (load *Load) Now() time.Duration { return time.Since(load.began) }

func (load *Load) rename(at int) {
	next := func() string { return fmt.Sprintf("r%d.%d.%d", load.round, at, load.numbers.Add(1)) }
	name := next()
	// A server that was lost has no keys at all.
	for tries := 1000; load.cluster != nil && at < load.hot && load.cluster.Owner(name) != load.hotOwner && tries > 0; tries-- {
		name = next()
	}
	load.names[at].Store(&name)
}

func (load *Load) Begin(random *rand.Rand) {
	for client := range clients {
		own := rand.New(rand.NewSource(random.Int63()))
		load.done.Add(1)
		go func() {
			defer load.done.Done()
			load.run(client, own)
		}()
	}
}

func (load *Load) End() {
	close(load.stop)
	load.done.Wait()
}

func (load *Load) run(client int, random *rand.Rand) {
	// Where keys are hot every third client is a smart one.
	var smart *Smart
	var asked Client
	if load.cluster != nil && load.hot > 0 && client%3 == 0 {
		smart = NewSmart(load.servers, random, &load.cluster.smartReads)
		asked = smart
	}
	defer func() {
		if asked != nil {
			asked.Close()
		}
	}()
	cas := map[string]uint64{}
	for load.goesOn(time.Duration(random.Int63n(int64(thinks)))) {
		// Connections change servers now and then.
		if asked != nil && smart == nil && random.Intn(50) == 0 {
			asked.Close()
			asked = nil
		}
		if asked == nil {
			fresh, err := Dial(load.servers[random.Intn(len(load.servers))])
			if err != nil {
				continue
			}
			asked = fresh
		}
		at := random.Intn(len(load.names))
		if load.hot > 0 && random.Intn(2) == 0 {
			at = load.anyHot(random)
		}
		key := *load.names[at].Load()
		in := load.choose(at, cas[key], random)
		out, err := load.ask(client, asked, key, in, random.Intn(2) == 0)
		if err != nil && smart == nil {
			asked.Close()
			asked = nil
		}
		if out.Cas != 0 {
			cas[key] = out.Cas
		}
		if out.Outcome == Unknown && in.Kind != Get && load.history.unknown(key) >= unknownMax {
			load.rename(at)
		}
	}
}

// goesOn waits, unless the load ends.
func (load *Load) goesOn(pause time.Duration) bool {
	select {
	case <-load.stop:
		return false
	case <-time.After(pause):
		return true
	}
}

// Every fourth key is a counter. All values are different, so that a read says what it has seen.
func (load *Load) choose(at int, cas uint64, random *rand.Rand) Input {
	isCounter := at%4 == 0
	value := fmt.Sprintf("v%d", load.numbers.Add(1))
	if isCounter {
		value = fmt.Sprintf("%d", load.numbers.Add(1)*1_000_000)
	} else if random.Intn(10) == 0 {
		value += strings.Repeat(".", random.Intn(4000))
	}
	dice := random.Intn(20)
	if load.isHot(at) {
		dice = random.Intn(20 * int(load.rareness.Load()))
		if dice >= 20 {
			dice = 0
		}
	}
	switch {
	case dice < 8:
		return Input{Kind: Get, Plain: load.cluster == nil && random.Intn(2) == 0}
	case dice < 9:
		return Input{Kind: Delete}
	case isCounter && dice < 17:
		return Input{Kind: Incr}
	case !isCounter && dice < 14 && cas != 0:
		return Input{Kind: Cas, Value: value, Cas: cas}
	default:
		return Input{Kind: Set, Value: value}
	}
}

func (load *Load) ask(client int, asked Client, key string, in Input, meta bool) (Output, error) {
	call := load.Now()
	out, err := asked.Ask(key, in, meta)
	answered := load.Now()
	foul := load.weather.WasFoul(call)
	if err != nil {
		out = Output{Outcome: Unknown, Error: err.Error()}
		if strings.Contains(out.Error, "is answered by") {
			load.nonsense.Store(&out.Error)
		}
	}
	if out.Outcome == Unknown && !foul {
		load.Hurt.Add(1)
	}
	if out.Outcome == Unknown && in.Kind != Get && load.cluster == nil && load.history.unknown(key) == 0 {
		load.history.Add(client, key, Input{Kind: Doubt}, Output{}, call, never)
	}
	// A proxy whose upstream cannot be reached says so.
	if in.Kind == Get && out.Outcome == Missing && foul && load.cluster != nil {
		load.Missed.Add(1)
		return out, err
	}
	load.history.Add(client, key, in, out, call, answered)
	return out, err
}

// ReadAll reads every key once at each server, when all is well again.
func (load *Load) ReadAll() error {
	load.history.mutex.Lock()
	names := make([]string, 0, len(load.history.keys))
	for name := range load.history.keys {
		names = append(names, name)
	}
	load.history.mutex.Unlock()
	for number, server := range load.servers {
		conn, err := Dial(server)
		if err != nil {
			return err
		}
		for _, name := range names {
			if _, err := load.ask(clients+number, conn, name, Input{Kind: Get}, true); err != nil {
				return err
			}
		}
		conn.Close()
	}
	return nil
}

// Fill stores items that nobody reads, so that a move takes its time.
func Fill(servers []*Node, random *rand.Rand, count int) error {
	value := strings.Repeat("f", 300)
	for _, server := range servers {
		conn, err := Dial(server)
		if err != nil {
			return err
		}
		var text strings.Builder
		for range count / len(servers) {
			fmt.Fprintf(&text, "set f%d 0 0 %d noreply\r\n%s\r\n", random.Intn(200_000), len(value), value)
		}
		text.WriteString("mn\r\n")
		_ = conn.stream.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := conn.stream.Write([]byte(text.String())); err != nil {
			return err
		}
		for line := ""; line != "MN"; {
			if line, err = conn.line(); err != nil {
				return err
			}
		}
		conn.Close()
	}
	return nil
}
