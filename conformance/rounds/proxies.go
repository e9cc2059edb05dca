package main

import (
	"errors"
	"fmt"
	"math/rand"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// Where proxies hear each other.
	peersAt   = 11400
	peerLease = time.Second
	// Few keys before proxies, and fewer that are hot at a time.
	proxyKeys = 12
	proxyHot  = 3
	// Other keys are hot after half of this at least.
	staysHot = 800 * time.Millisecond
	// A write of unknown outcome keeps its upstream's keys from being copied for five seconds.
	hotWithin = 12 * time.Second
	// A peer that does not answer is given up after twice this: the lease has to be over before.
	upstreamAnswers = 800 * time.Millisecond
	// Of so many rounds one has a cut that is longer than a proxy doubts, and in which segments are sent again late.
	cutsLongOneOf = 8
	// Of so many rounds one parts the proxies for longer than a lease while both have copies.
	partsOneOf = 3
	// Hot keys are written so often that a proxy answers them itself, rather than that it makes copies.
	often  = 1
	rarely = 40
)

// Rounds of two proxies before three memcacheds. Other keys are hot every now and then, and get copies and lose them.
type ProxyRounds struct {
	campaign *Campaign
	// What proxies count, by its name.
	tallies map[string]Tally
	// Rounds in which copies were read before faults began.
	copied int
}

// What is told of at the end: copies are read in two ways.
var counters = []string{"copy_reads", "cache_hits", "copies_stored", "passed", "leases_ended", "deleted_unsure"}

func NewProxyRounds(campaign *Campaign) *ProxyRounds {
	tallies := map[string]Tally{}
	for _, name := range counters {
		tallies[name] = Tally{}
	}
	return &ProxyRounds{campaign: campaign, tallies: tallies}
}

func (rounds *ProxyRounds) summary() string {
	text := fmt.Sprintf("%d memcacheds died; in %d rounds copies were read before faults began", rounds.campaign.deaths, rounds.copied)
	for _, name := range counters {
		text += fmt.Sprintf(", %s %d", name, rounds.tallies[name].Ever())
	}
	return text
}

// copyReads are reads that no home has answered.
func (rounds *ProxyRounds) copyReads() int64 {
	return rounds.tallies["copy_reads"].Ever() + rounds.tallies["cache_hits"].Ever()
}

func (rounds *ProxyRounds) lackCopies() bool { return rounds.copyReads() == 0 }

func (rounds *ProxyRounds) play(round int, random *rand.Rand) {
	campaign := rounds.campaign
	world := campaign.world
	proxies := world.All(Proxy)
	if err := rounds.awaitRecovery(); err != nil {
		campaign.stuck(round, fmt.Errorf("before it: %w", err))
		return
	}
	isLong, parts := round%cutsLongOneOf == 0, round%partsOneOf == 0
	// While proxies are parted copies have to last: a write of the coordinator's own clients ends them.
	rarenesses := []int32{often, 4, rarely}
	if parts {
		rarenesses = []int32{rarely}
	}
	var faults []Fault
	switch {
	case isLong:
		faults = []Fault{{what: "cut", node: world.All(Memcached)[random.Intn(each)], lasts: time.Duration(5000+random.Intn(2500)) * time.Millisecond}}
	case parts:
		at := random.Intn(len(proxies))
		faults = []Fault{{what: [...]string{"stop", "cut", "mute", "mute"}[random.Intn(4)], node: proxies[at], other: proxies[1-at],
			lasts: peerLease + time.Duration(random.Intn(2000))*time.Millisecond}}
	default:
		faults = draw(world, random)
	}
	var weather Weather
	load := NewLoad(round, nil, proxies, &weather, proxyKeys, proxyHot, 0)
	load.history.ofMemcached = true
	weather.Calm(0)
	load.Begin(random)
	var isHot atomic.Bool
	for number := range hammers {
		own := rand.New(rand.NewSource(random.Int63()))
		load.done.Add(1)
		go func() {
			defer load.done.Done()
			load.hammerProxy(number, &isHot, own)
		}()
	}
	heat := rand.New(rand.NewSource(random.Int63()))
	heated := time.Now()
	stopHeat := every(staysHot/8, func() {
		if time.Since(heated) > staysHot/2 && heat.Intn(4) == 0 {
			heated = time.Now()
			load.hotFrom.Store(int32(heat.Intn(proxyKeys)))
			load.rareness.Store(rarenesses[heat.Intn(len(rarenesses))])
		}
	})
	if rounds.awaitCopies() {
		rounds.copied++
	}
	isHot.Store(true)
	time.Sleep(calm)

	weather.Foul()
	deaths := campaign.inject(round, faults, load.Now, nil)
	healed := time.Now()
	time.Sleep(calm)
	why := rounds.awaitRecovery()
	recovered := time.Since(healed)
	if why == nil {
		weather.Calm(load.Now())
		if isLong {
			// What was sent before the cut may arrive still, and keys are copied again.
			rounds.awaitCopies()
			time.Sleep(peerLease)
		}
		time.Sleep(calm)
	}
	stopHeat()
	load.End()
	rounds.note()
	campaign.deaths += len(deaths)
	if why == nil {
		why = load.ReadAll()
	}
	if why == nil {
		why = rounds.lose(load.history, deaths)
	}
	campaign.judge(round, "proxies", faults, load, load.history.Check(), recovered, why)
}

// lose says in a history what may be gone since a memcached died. A proxy that has not heard of that may read a copy for a while.
func (rounds *ProxyRounds) lose(history *History, deaths []Death) error {
	if len(deaths) == 0 {
		return nil
	}
	proxy := rounds.campaign.world.All(Proxy)[0]
	for key := range history.keys {
		lines, err := proxy.stats("explain " + key)
		if err != nil {
			return err
		}
		for _, death := range deaths {
			home := "home " + (&Node{Role: Memcached, Number: death.server}).IP() + ":"
			if strings.Contains(strings.Join(lines, "\n"), home) {
				history.Add(clients+each, key, Input{Kind: Loss}, Output{}, death.before, never)
			}
		}
	}
	return nil
}

// hammerProxy reads the keys that are hot by one proxy. The first answers of some batches go into the history.
func (load *Load) hammerProxy(number int, isHot *atomic.Bool, random *rand.Rand) {
	server := load.servers[number%len(load.servers)]
	load.hammer(server, isHot, random, func() {}, func(conn *Conn) error {
		isTold, beside := random.Intn(tellsOneOf) == 0, blows
		if load.rareness.Load() == often {
			beside = 0
			time.Sleep(20 * rests)
		}
		return load.batch(conn, "get", load.hotNames(), random.Intn(4) == 0, beside, func(key string, out Output, isFirst bool, call, answered time.Duration) {
			if isTold && isFirst {
				load.history.Add(2*clients+number, key, Input{Kind: Get, Plain: true}, out, call, answered)
			}
		})
	})
}

// stats has the lines of `stats`, without STAT and END.
func (node *Node) stats(what string) ([]string, error) {
	conn, err := Dial(node)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	_ = conn.stream.SetDeadline(time.Now().Add(answersWithin))
	if _, err := conn.stream.Write([]byte(strings.TrimSpace("stats "+what) + "\r\n")); err != nil {
		return nil, err
	}
	var lines []string
	for {
		line, err := conn.line()
		if err != nil {
			return nil, err
		}
		if line == "END" {
			return lines, nil
		}
		said, found := strings.CutPrefix(line, "STAT ")
		if !found {
			return nil, errors.New(line)
		}
		lines = append(lines, said)
	}
}

// note takes what proxies count.
func (rounds *ProxyRounds) note() {
	for _, proxy := range rounds.campaign.world.All(Proxy) {
		lines, err := proxy.stats("")
		if err != nil {
			continue
		}
		for _, line := range lines {
			name, value, _ := strings.Cut(line, " ")
			if count, err := strconv.ParseInt(value, 10, 64); err == nil && rounds.tallies[name] != nil {
				rounds.tallies[name].Note(proxy, count)
			}
		}
	}
}

// awaitCopies waits until reads are answered from copies; false if none is.
func (rounds *ProxyRounds) awaitCopies() bool {
	rounds.note()
	before := rounds.copyReads()
	for begin := time.Now(); time.Since(begin) < hotWithin; time.Sleep(50 * time.Millisecond) {
		if rounds.note(); rounds.copyReads() > before+100 {
			return true
		}
	}
	return false
}

// awaitRecovery waits until all processes run, and both proxies reach all upstreams and each other; the error says what is not so.
func (rounds *ProxyRounds) awaitRecovery() error {
	err := within(recoversWithin, func() error {
		for _, node := range rounds.campaign.world.Nodes {
			if !node.Runs() {
				return fmt.Errorf("%s has ended", node.Name())
			}
		}
		for _, proxy := range rounds.campaign.world.All(Proxy) {
			if err := isWell(proxy); err != nil {
				return fmt.Errorf("%s: %w", proxy.Name(), err)
			}
		}
		return nil
	})
	if err == nil {
		return nil
	}
	for _, proxy := range rounds.campaign.world.All(Proxy) {
		lines, why := proxy.stats("")
		err = fmt.Errorf("%w\n%s: %v %s", err, proxy.Name(), why, strings.Join(lines, "\n  "))
	}
	return err
}

func isWell(proxy *Node) error {
	lines, err := proxy.stats("")
	if err != nil {
		return err
	}
	up := 0
	for _, line := range lines {
		if strings.HasPrefix(line, "upstream:") && strings.HasSuffix(line, ":state up") {
			up++
		}
		if said, found := strings.CutPrefix(line, "copies "); found && said != "yes" {
			return errors.New(line)
		}
	}
	if up != each {
		return fmt.Errorf("%d upstreams are up", up)
	}
	conn, err := Dial(proxy)
	if err != nil {
		return err
	}
	defer conn.Close()
	// Keys of all upstreams.
	for number := range 30 {
		if out, err := conn.Ask(fmt.Sprintf("probe%d", number), Input{Kind: Delete}, false); err != nil || out.Outcome == Unknown {
			return errors.Join(errors.New(out.Error), err)
		}
	}
	return nil
}
