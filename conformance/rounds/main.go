// Rounds of faults: a cluster of real processes, each in a network of its own, whose cachelets move while processes are killed,
// stopped and cut off, and copies of hot keys are read. What clients were told must be what a single server could have said, or what
// hot keys' mode promises.
//
// conformance/run-rounds builds it, and starts it in namespaces of its own.
package main

import (
	"flag"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// A move is ordered this often, and the map looked at.
const (
	movesEvery = 60 * time.Millisecond
	looksEvery = 40 * time.Millisecond
	// Moves without any fault, before and after those of a round.
	calm = 400 * time.Millisecond
)

func main() {
	rounds := flag.Int("rounds", 10, "how many `rounds`")
	seconds := flag.Int("seconds", 0, "begin no round after so many `seconds`; 0: no such bound")
	seed := flag.Int64("seed", time.Now().UnixNano()%1_000_000, "what is drawn")
	mbal := flag.String("mbal", "target/release/mbal", "the program")
	folder := flag.String("folder", "", "for logs and what etcd keeps")
	plant := flag.String("plant", "", "a `fault` in the servers (built with --features planted), which has to be found")
	hot := flag.String("hot", "", "how hot keys are copied: off, async or atomic; another `mode` each round by default")
	pause := flag.String("pause-while", "", "begin no round while this `file` is there: others measure")
	flag.Parse()
	fmt.Printf("seed %d\n", *seed)
	var environment []string
	if *plant != "" {
		environment = append(environment, "MBAL_PLANTED="+*plant)
	}
	modes := []string{"atomic", "async", "off"}
	if *hot != "" {
		if !slices.Contains(modes, *hot) {
			fmt.Printf("--hot %s: it is one of %v\n", *hot, modes)
			os.Exit(2)
		}
		modes = []string{*hot}
	}
	world, err := NewWorld(*folder, *mbal, modes[0], environment)
	if err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
	campaign := Campaign{world: world, cluster: NewCluster(world), folder: *folder}
	began := time.Now()
	for round := 1; round <= *rounds; round++ {
		if *seconds > 0 && time.Since(began) > time.Duration(*seconds)*time.Second {
			break
		}
		for exists(*pause) {
			time.Sleep(time.Second)
		}
		// Each round by its own seed, however long those before it have taken.
		campaign.round(round, modes[(round-1)%len(modes)], rand.New(rand.NewSource(*seed*1_000_003+int64(round))))
		if campaign.isStuck || *plant != "" && campaign.failed > 0 {
			break
		}
	}
	ordered, versions := campaign.cluster.Counts()
	fmt.Printf("rounds: %d rounds in %.0f s, seed %d; %d operations (%d of unknown outcome), %d get misses while faults were at work, "+
		"%d errors while none was; %d moves ordered, %d maps seen, %d servers died, %d of them since their leases ended; %d keys undecided, %d rounds failed\n",
		campaign.done, time.Since(began).Seconds(), *seed, campaign.operations, campaign.unknown, campaign.missed,
		campaign.hurt, ordered, versions, campaign.deaths, campaign.lapses, campaign.undecided, campaign.failed)
	if campaign.hotRounds > 0 {
		copyReads := campaign.cluster.CopyReads()
		fmt.Printf("hot keys: %d rounds, in %d of them copies were read before faults began; %d reads from copies, %d of them by smart clients; "+
			"%d operations with keys whose values are counted\n", campaign.hotRounds, campaign.copied, copyReads,
			campaign.cluster.smartReads.Load(), campaign.counted)
		if copyReads == 0 {
			fmt.Println("FAILED: no copy has been read")
			os.Exit(1)
		}
	}
	if (campaign.failed > 0) != (*plant != "") {
		os.Exit(1)
	}
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return file != "" && err == nil
}

type Campaign struct {
	world   *World
	cluster *Cluster
	folder  string

	done, operations, unknown, undecided, deaths, lapses, failed int
	missed, hurt                                                 int64
	hotRounds, copied, counted                                   int
	isStuck                                                      bool
}

func (campaign *Campaign) fail(round int, why string) {
	campaign.failed++
	name := filepath.Join(campaign.folder, fmt.Sprintf("round%d.txt", round))
	_ = os.WriteFile(name, []byte(why), 0o644)
	if lines := strings.Split(why, "\n"); len(lines) > 40 {
		why = strings.Join(lines[:40], "\n") + "\n  ... more in " + name
	}
	fmt.Printf("FAILED round %d: %s\n", round, why)
}

func (campaign *Campaign) round(round int, hot string, random *rand.Rand) {
	campaign.done++
	world, cluster := campaign.world, campaign.cluster
	servers := world.All(Server)
	if err := world.CopyHotKeys(hot); err != nil {
		campaign.isStuck = true
		campaign.fail(round, "before it: "+err.Error())
		return
	}
	if err := cluster.AwaitRecovery(); err != nil {
		campaign.isStuck = true
		campaign.fail(round, "before it: "+err.Error())
		return
	}
	if _, _, err := cluster.call("PUT", "/v1/balance", `{"mode":"off"}`); err != nil {
		fmt.Println("the balancer is on:", err)
	}
	cluster.Settled()
	incarnations, err := cluster.Incarnations()
	if err != nil {
		campaign.fail(round, "before it: "+err.Error())
		return
	}
	if err := Fill(servers, random, 45_000); err != nil {
		campaign.fail(round, "it cannot be filled: "+err.Error())
		return
	}
	faults := draw(world, random)
	var weather Weather
	load := NewLoad(round, cluster, &weather, hotMixed[hot], cluster.AnyOwner(random))
	heat := NewHeat(load)
	weather.Calm(0)
	if hot != "async" {
		load.Begin(random)
	}
	if hot != "off" {
		campaign.hotRounds++
		heat.Begin(random)
		if heat.AwaitCopies() {
			campaign.copied++
		}
	}
	mover := rand.New(rand.NewSource(random.Int63()))
	stopMoves := every(movesEvery, func() { cluster.OrderMove(mover) })
	stopLooks := every(looksEvery, func() { _ = cluster.Look() })
	time.Sleep(calm)

	weather.Foul()
	fouled := load.Now()
	var deaths []Death
	var mutex sync.Mutex
	var healing sync.WaitGroup
	for _, fault := range faults {
		healing.Add(1)
		go func() {
			defer healing.Done()
			death, err := fault.Do(cluster, load.Now)
			mutex.Lock()
			defer mutex.Unlock()
			if err != nil {
				fmt.Printf("round %d: %v: %v\n", round, fault, err)
			}
			if death != nil {
				deaths = append(deaths, *death)
			}
		}()
	}
	healing.Wait()
	healed := time.Now()
	time.Sleep(calm)
	stopMoves()
	why := cluster.AwaitRecovery()
	recovered := time.Since(healed)
	if why == nil {
		lapsed, err := campaign.lapsed(incarnations, deaths, fouled, load.Now())
		why = err
		deaths = append(deaths, lapsed...)
	}
	if why == nil {
		weather.Calm(load.Now())
		stopMoves = every(movesEvery, func() { cluster.OrderMove(mover) })
		time.Sleep(calm)
		stopMoves()
	}
	load.End()
	stopLooks()
	if why == nil {
		// Moves of the calm time are over, too.
		why = cluster.AwaitRecovery()
	}
	if why == nil {
		why = load.ReadAll()
	}
	campaign.deaths += len(deaths)
	// An item outlives its owner by the leases of its copies.
	lingers := time.Duration(0)
	if hot == "atomic" {
		lingers = copyAge
	}
	for key := range load.history.keys {
		for _, death := range deaths {
			if cluster.MayHold(key, death.server) {
				load.history.Add(clients+each, key, Input{Kind: Loss}, Output{}, death.before, death.after+lingers)
			}
		}
	}
	verdict := load.history.Check()
	// In async mode clients are promised less.
	promise := Promise{ToAll: true, MayBeGone: len(deaths) > 0}
	if hot == "async" {
		promise.ToAll, promise.Age = false, copyAge
	}
	counted, broken := heat.versions.Check(promise)
	campaign.counted += counted
	verdict.Violations = append(verdict.Violations, broken...)
	campaign.operations += verdict.Operations
	campaign.unknown += verdict.Unknown
	campaign.undecided += verdict.Undecided
	campaign.missed += load.Missed.Load()
	campaign.hurt += load.Hurt.Load()
	said := make([]string, len(faults))
	for at, fault := range faults {
		said[at] = fault.String()
	}
	fmt.Printf("round %d: hot keys %s, %s; %d operations, %d unknown, %d missed, well after %d ms\n", round, hot, strings.Join(said, ", "),
		verdict.Operations+counted, verdict.Unknown, load.Missed.Load(), recovered.Milliseconds())
	if nonsense := load.nonsense.Load(); nonsense != nil {
		campaign.fail(round, *nonsense)
	}
	if why != nil {
		campaign.isStuck = true
		campaign.fail(round, why.Error())
	}
	if len(verdict.Violations) > 0 {
		campaign.fail(round, fmt.Sprintf("%d keys: %s\n%s", len(verdict.Violations), strings.Join(said, ", "), strings.Join(verdict.Violations, "\n")))
	}
}

// lapsed has the servers that were not killed, and are other incarnations than before all the same: their leases ended in foul
// weather, since neither etcd nor a coordinator was heard for too long.
func (campaign *Campaign) lapsed(before map[int]string, killed []Death, from, to time.Duration) ([]Death, error) {
	after, err := campaign.cluster.Incarnations()
	var lapsed []Death
	for server, incarnation := range after {
		isKilled := false
		for _, death := range killed {
			isKilled = isKilled || death.server == server
		}
		if incarnation != before[server] && !isKilled {
			campaign.lapses++
			lapsed = append(lapsed, Death{server, from, to})
		}
	}
	return lapsed, err
}

// every does something again and again, until what it returns is called.
func every(pause time.Duration, do func()) (stop func()) {
	ends, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-ends:
				return
			case <-time.After(pause):
				do()
			}
		}
	}()
	return func() {
		close(ends)
		<-ended
	}
}
