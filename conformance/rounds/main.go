// Rounds of faults on real processes, each in a network of its own: they are killed, stopped and cut off while copies of hot keys are
// read. What clients were told must be what a single server could have said, or what hot keys' mode promises.
//
// Of a cluster, whose cachelets move meanwhile (clusters.go); or of two proxies before three memcacheds (proxies.go).
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

// Load without any fault, before and after those of a round.
const calm = 400 * time.Millisecond

func main() {
	count := flag.Int("rounds", 10, "how many `rounds`")
	seconds := flag.Int("seconds", 0, "begin no round after so many `seconds`; 0: no such bound")
	seed := flag.Int64("seed", time.Now().UnixNano()%1_000_000, "what is drawn")
	mbal := flag.String("mbal", "target/release/mbal", "the program")
	folder := flag.String("folder", "", "for logs and what etcd keeps")
	plant := flag.String("plant", "", "a `fault` in the servers (built with --features planted), which has to be found")
	hot := flag.String("hot", "", "how hot keys are copied: off, async or atomic; another `mode` each round by default")
	proxies := flag.Bool("proxies", false, "two proxies before three memcacheds, instead of a cluster")
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
	roles := clusterRoles
	if *proxies {
		roles = proxyRoles
	}
	world, err := NewWorld(*folder, *mbal, modes[0], environment, roles)
	if err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
	campaign := Campaign{world: world, folder: *folder}
	var rounds Rounds
	if *proxies {
		rounds = NewProxyRounds(&campaign)
	} else {
		rounds = NewClusterRounds(&campaign, modes)
	}
	began := time.Now()
	for round := 1; round <= *count; round++ {
		if *seconds > 0 && time.Since(began) > time.Duration(*seconds)*time.Second {
			break
		}
		for exists(*pause) {
			time.Sleep(time.Second)
		}
		campaign.done++
		// Each round by its own seed, however long those before it have taken.
		rounds.play(round, rand.New(rand.NewSource(*seed*1_000_003+int64(round))))
		if campaign.isStuck || *plant != "" && campaign.failed > 0 {
			break
		}
	}
	fmt.Printf("rounds: %d rounds in %.0f s, seed %d; %d operations (%d of unknown outcome), "+
		"%d errors while no fault was at work; %s; %d keys undecided, %d rounds failed\n",
		campaign.done, time.Since(began).Seconds(), *seed, campaign.operations, campaign.unknown,
		campaign.hurt, rounds.summary(), campaign.undecided, campaign.failed)
	if rounds.lackCopies() {
		fmt.Println("FAILED: no copy has been read")
		os.Exit(1)
	}
	if (campaign.failed > 0) != (*plant != "") {
		os.Exit(1)
	}
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return file != "" && err == nil
}

// What rounds are of.
type Rounds interface {
	play(round int, random *rand.Rand)
	// What these rounds alone count.
	summary() string
	// Copies were to be read, and none has been.
	lackCopies() bool
}

// What all rounds have and count.
type Campaign struct {
	world  *World
	folder string

	done, operations, unknown, undecided, deaths, failed int
	hurt                                                 int64
	isStuck                                              bool
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

// stuck fails a round after which no other can be played.
func (campaign *Campaign) stuck(round int, err error) {
	campaign.isStuck = true
	campaign.fail(round, err.Error())
}

// inject injects faults, returns when all are healed, and says who died of them.
func (campaign *Campaign) inject(round int, faults []Fault, now func() time.Duration, lost func(server int)) []Death {
	var deaths []Death
	var mutex sync.Mutex
	var healing sync.WaitGroup
	for _, fault := range faults {
		healing.Add(1)
		go func() {
			defer healing.Done()
			death, err := fault.Do(now, lost)
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
	return deaths
}

// judge counts and tells what has come of a round: what was found, and why all is not well after it, if it is not.
func (campaign *Campaign) judge(round int, how string, faults []Fault, load *Load, verdict Verdict, recovered time.Duration, why error) {
	campaign.operations += verdict.Operations
	campaign.unknown += verdict.Unknown
	campaign.undecided += verdict.Undecided
	campaign.hurt += load.Hurt.Load()
	said := make([]string, len(faults))
	for at, fault := range faults {
		said[at] = fault.String()
	}
	what := strings.Join(said, ", ")
	fmt.Printf("round %d: %s, %s; %d operations, %d unknown, %d missed, well after %d ms\n", round, how, what,
		verdict.Operations, verdict.Unknown, load.Missed.Load(), recovered.Milliseconds())
	if nonsense := load.nonsense.Load(); nonsense != nil {
		campaign.fail(round, *nonsense)
	}
	if why != nil {
		campaign.stuck(round, why)
	}
	if len(verdict.Violations) > 0 {
		campaign.fail(round, fmt.Sprintf("%d keys: %s\n%s", len(verdict.Violations), what, strings.Join(verdict.Violations, "\n")))
	}
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
