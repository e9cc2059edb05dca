package main

import (
	"fmt"
	"math/rand"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// How long copies are read without word of the original; clocks run apart by a tenth.
	copyLease = time.Second
	copyAge   = copyLease + copyLease/10
	// Hot keys whose values are counted.
	hotVersions = 2
	// Connections that read hot keys, so many at a time; and how long they rest between, once copies are read.
	hammers = 6
	deep    = 24
	// Requests beside these, whose values are not asked for: they cost clients little, and servers as much.
	blows = 300
	rests = time.Millisecond
	// Of so many batches one goes into the history: what a check costs grows with it.
	tellsOneOf = 8
	// A writer stores this often.
	writes = 25 * time.Millisecond
	// Copies are there within this.
	copiesWithin = 5 * time.Second
)

// How many of the load's keys are hot. In async mode clients are not told what one server could have said, and there is no such load.
var hotMixed = map[string]int{"atomic": 2}

// What makes keys hot: connections that read nothing else, and a writer for each key whose values are counted.
type Heat struct {
	load     *Load
	versions *Versions
	keys     [hotVersions]string
	// Copies are read, or were waited for in vain: hammers rest between batches.
	isHot atomic.Bool
}

// NewHeat adds to a load what makes its hot keys hot.
func NewHeat(load *Load) *Heat {
	heat := &Heat{load: load, versions: NewVersions()}
	for at := range heat.keys {
		for number := 0; heat.keys[at] == "" || load.cluster.Owner(heat.keys[at]) != load.hotOwner; number++ {
			heat.keys[at] = fmt.Sprintf("h%d.%d.%d", load.round, at, number)
		}
	}
	return heat
}

// Begin ends with the load.
func (heat *Heat) Begin(random *rand.Rand) {
	for number := range hammers {
		heat.start(random, func(own *rand.Rand) { heat.hammer(number, own) })
	}
	for number := range heat.keys {
		heat.start(random, func(own *rand.Rand) { heat.write(number, own) })
	}
	for number := range 2 * hotVersions {
		heat.start(random, func(own *rand.Rand) { heat.read(number, own) })
	}
}

func (heat *Heat) start(random *rand.Rand, run func(*rand.Rand)) {
	own := rand.New(rand.NewSource(random.Int63()))
	heat.load.done.Add(1)
	go func() {
		defer heat.load.done.Done()
		run(own)
	}()
}

// AwaitCopies waits until reads are answered from copies; false if none is.
func (heat *Heat) AwaitCopies() bool {
	defer heat.isHot.Store(true)
	cluster := heat.load.cluster
	before := cluster.CopyReads()
	for begin := time.Now(); time.Since(begin) < copiesWithin; time.Sleep(50 * time.Millisecond) {
		if cluster.CopyReads() > before+100 {
			return true
		}
	}
	return false
}

// hammer asks one server for hot keys, many at a time. The first answers of some batches for keys that all clients write go into the
// history.
func (heat *Heat) hammer(number int, random *rand.Rand) {
	load := heat.load
	server := load.servers[number%len(load.servers)]
	var session *Session
	begins := func() { session = heat.versions.Session(fmt.Sprintf("reader %d of %s", number, server.Name())) }
	load.hammer(server, &heat.isHot, random, begins, func(conn *Conn) error {
		isTold := random.Intn(tellsOneOf) == 0
		names := append(append([]string(nil), heat.keys[:]...), load.hotNames()...)
		return load.batch(conn, "gets", names, random.Intn(2) == 0, blows, func(key string, out Output, isFirst bool, call, answered time.Duration) {
			if key[0] == 'h' {
				heat.seen(session, key, out, call, answered)
			} else if isTold && isFirst && (out.Outcome == Done || !load.weather.WasFoul(call)) {
				load.history.Add(2*clients+number, key, Input{Kind: Get}, out, call, answered)
			}
		})
	})
}

// hammer does batches over one connection after the other; `begins` is told of each. It rests between batches when `rested` says so.
func (load *Load) hammer(server *Node, rested *atomic.Bool, random *rand.Rand, begins func(), batch func(conn *Conn) error) {
	var conn *Conn
	for {
		pause := time.Duration(0)
		if rested.Load() {
			pause = rests
		}
		if !load.goesOn(pause) {
			break
		}
		if conn == nil || random.Intn(500) == 0 {
			if conn != nil {
				conn.Close()
			}
			fresh, err := Dial(server)
			if err != nil {
				conn = nil
				continue
			}
			conn = fresh
			begins()
		}
		if err := batch(conn); err != nil {
			conn.Close()
			conn = nil
		}
	}
	if conn != nil {
		conn.Close()
	}
}

// batch asks for keys by many commands `verb`, of one key each or of `several`, and tells what each answer has of each key, and
// whether it is the first one for the key. So many `blows` beside them are answered by no value.
func (load *Load) batch(conn *Conn, verb string, names []string, several bool, blows int,
	tell func(key string, out Output, isFirst bool, call, answered time.Duration)) error {
	var text strings.Builder
	for at := range deep {
		if several {
			fmt.Fprintf(&text, "%s %s\r\n", verb, strings.Join(names, " "))
		} else {
			fmt.Fprintf(&text, "%s %s\r\n", verb, names[at%len(names)])
		}
	}
	for at := range blows {
		fmt.Fprintf(&text, "mg %s\r\n", names[at%len(names)])
	}
	_ = conn.stream.SetDeadline(time.Now().Add(answersWithin))
	call := load.Now()
	if _, err := conn.stream.Write([]byte(text.String())); err != nil {
		return err
	}
	for at := range deep {
		asked := names[at%len(names):][:1]
		if several {
			asked = names
		}
		found, err := conn.values()
		if err != nil {
			return err
		}
		answered := load.Now()
		for _, key := range asked {
			out, there := found[key]
			if !there {
				out.Outcome = Missing
			}
			tell(key, out, at < len(names) && (!several || at == 0), call, answered)
		}
	}
	for range blows {
		if _, err := conn.reader.ReadSlice('\n'); err != nil {
			return err
		}
	}
	return nil
}

// values reads the answer to a `get` or `gets`.
func (conn *Conn) values() (map[string]Output, error) {
	found := map[string]Output{}
	for {
		line, err := conn.line()
		if err != nil {
			return nil, err
		}
		if line == "END" {
			return found, nil
		}
		words := strings.Fields(line)
		if len(words) < 4 || words[0] != "VALUE" {
			return nil, fmt.Errorf("a get is answered by %q", line)
		}
		value, err := conn.value(words[3])
		if err != nil {
			return nil, err
		}
		cas := uint64(0)
		if len(words) == 5 {
			if cas, err = strconv.ParseUint(words[4], 10, 64); err != nil {
				return nil, err
			}
		}
		found[words[1]] = Output{Value: value, Cas: cas}
	}
}

// seen notes what was read of a key whose values are counted. A miss in foul weather says nothing.
func (heat *Heat) seen(session *Session, key string, out Output, call, answered time.Duration) {
	version := 0
	switch out.Outcome {
	case Done:
		number, err := strconv.Atoi(out.Value)
		if err != nil {
			why := fmt.Sprintf("get %s is answered by %q", key, out.Value)
			heat.load.nonsense.Store(&why)
		}
		version = number
	case Missing:
		if heat.load.weather.WasFoul(call) {
			return
		}
	default:
		return
	}
	session.Add(Seen{Key: key, Version: version, Call: call, Answered: answered})
}

// ask is one operation with a key whose values are counted.
func (heat *Heat) ask(asked Client, session *Session, key string, in Input) (Output, error) {
	call := heat.load.Now()
	out, err := asked.Ask(key, in, true)
	if err != nil {
		return Output{Outcome: Unknown}, err
	}
	answered := heat.load.Now()
	switch in.Kind {
	case Get, GetHome:
		heat.seen(session, key, out, call, answered)
	default:
		if out.Outcome == Done {
			version, _ := strconv.Atoi(in.Value)
			session.Add(Seen{Key: key, Version: version, Stored: true, Call: call, Answered: answered})
		}
	}
	return out, nil
}

// client is a smart one or a connection to any server. What a connection has been told does not bind the next one.
func (heat *Heat) client(name string, smart bool, random *rand.Rand) (Client, *Session, error) {
	load := heat.load
	if smart {
		return NewSmart(load.servers, random, &load.cluster.smartReads), heat.versions.Session("smart " + name), nil
	}
	server := load.servers[random.Intn(len(load.servers))]
	conn, err := Dial(server)
	return conn, heat.versions.Session(name + " of " + server.Name()), err
}

// write stores one key's next value again and again, and reads it afterwards.
func (heat *Heat) write(number int, random *rand.Rand) {
	key, isSmart := heat.keys[number], number%2 == 0
	var asked Client
	var session *Session
	var cas uint64
	for heat.load.goesOn(time.Duration(random.Int63n(int64(2 * writes)))) {
		if asked == nil {
			client, fresh, err := heat.client("writer", isSmart, random)
			if err != nil {
				continue
			}
			asked, session = client, fresh
		}
		out, err := heat.store(asked, session, key, cas)
		cas = out.Cas
		if out.Outcome == Unknown && cas == 0 {
			// It may be added whenever the item is gone again.
			return
		}
		if err == nil {
			_, err = heat.ask(asked, session, key, Input{Kind: Get})
		}
		if err != nil && !isSmart {
			asked.Close()
			asked = nil
		}
	}
	if asked != nil {
		asked.Close()
	}
}

// store stores the next value over the one with this cas; 0 is that it is not known. The answer has the cas that the item has then.
// Unknown without a cas: the value was to be added, and nobody knows whether it was.
func (heat *Heat) store(asked Client, session *Session, key string, cas uint64) (Output, error) {
	next := func(in Input) (Output, error) {
		in.Value = strconv.Itoa(heat.versions.Try(key, heat.load.Now()))
		return heat.ask(asked, session, key, in)
	}
	if cas == 0 {
		out, err := heat.ask(asked, session, key, Input{Kind: GetHome})
		if err != nil || out.Outcome == Unknown {
			return Output{Outcome: Exists}, err
		}
		if out.Outcome == Missing {
			return next(Input{Kind: Add})
		}
		cas = out.Cas
	}
	out, err := next(Input{Kind: Cas, Cas: cas})
	if out.Outcome != Done {
		out = Output{Outcome: Exists}
	}
	return out, err
}

// read asks for one key, by one client after the other, or as one smart client.
func (heat *Heat) read(number int, random *rand.Rand) {
	key, isSmart := heat.keys[number%hotVersions], number < hotVersions
	var asked Client
	var session *Session
	for heat.load.goesOn(time.Duration(random.Int63n(int64(thinks)))) {
		if asked != nil && !isSmart && random.Intn(500) == 0 {
			asked.Close()
			asked = nil
		}
		if asked == nil {
			client, fresh, err := heat.client("reader", isSmart, random)
			if err != nil {
				continue
			}
			asked, session = client, fresh
		}
		if _, err := heat.ask(asked, session, key, Input{Kind: Get}); err != nil && !isSmart {
			asked.Close()
			asked = nil
		}
	}
	if asked != nil {
		asked.Close()
	}
}
