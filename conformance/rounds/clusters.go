package main

import (
	"fmt"
	"math/rand"
	"time"
)

// A move is ordered this often, and the map looked at.
const (
	movesEvery = 60 * time.Millisecond
	looksEvery = 40 * time.Millisecond
)

// Rounds of a cluster: three servers, three coordinators and three members of etcd; cachelets move meanwhile.
type ClusterRounds struct {
	campaign *Campaign
	cluster  *Cluster
	// How hot keys are copied: another one each round.
	modes []string

	lapses, hotRounds, copied, counted int
	missed                             int64
}

func NewClusterRounds(campaign *Campaign, modes []string) *ClusterRounds {
	return &ClusterRounds{campaign: campaign, cluster: NewCluster(campaign.world), modes: modes}
}

func (rounds *ClusterRounds) summary() string {
	ordered, versions := rounds.cluster.Counts()
	text := fmt.Sprintf("%d get misses while faults were at work; %d moves ordered, %d maps seen, %d servers died, %d of them since their leases ended",
		rounds.missed, ordered, versions, rounds.campaign.deaths, rounds.lapses)
	if rounds.hotRounds > 0 {
		text += fmt.Sprintf("; hot keys: %d rounds, in %d of them copies were read before faults began, %d reads from copies, %d of them by smart clients, "+
			"%d operations with keys whose values are counted", rounds.hotRounds, rounds.copied, rounds.cluster.CopyReads(),
			rounds.cluster.smartReads.Load(), rounds.counted)
	}
	return text
}

func (rounds *ClusterRounds) lackCopies() bool {
	return rounds.hotRounds > 0 && rounds.cluster.CopyReads() == 0
}

func (rounds *ClusterRounds) play(round int, random *rand.Rand) {
	campaign, cluster, hot := rounds.campaign, rounds.cluster, rounds.modes[(round-1)%len(rounds.modes)]
	world := campaign.world
	servers := world.All(Server)
	if err := world.CopyHotKeys(hot); err != nil {
		campaign.stuck(round, fmt.Errorf("before it: %w", err))
		return
	}
	if err := cluster.AwaitRecovery(); err != nil {
		campaign.stuck(round, fmt.Errorf("before it: %w", err))
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
	load := NewLoad(round, cluster, servers, &weather, keys, hotMixed[hot], cluster.AnyOwner(random))
	heat := NewHeat(load)
	weather.Calm(0)
	if hot != "async" {
		load.Begin(random)
	}
	if hot != "off" {
		rounds.hotRounds++
		heat.Begin(random)
		if heat.AwaitCopies() {
			rounds.copied++
		}
	}
	mover := rand.New(rand.NewSource(random.Int63()))
	stopMoves := every(movesEvery, func() { cluster.OrderMove(mover) })
	stopLooks := every(looksEvery, func() { _ = cluster.Look() })
	time.Sleep(calm)

	weather.Foul()
	fouled := load.Now()
	deaths := campaign.inject(round, faults, load.Now, cluster.Lost)
	healed := time.Now()
	time.Sleep(calm)
	stopMoves()
	why := cluster.AwaitRecovery()
	recovered := time.Since(healed)
	if why == nil {
		lapsed, err := rounds.lapsed(incarnations, deaths, fouled, load.Now())
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
	rounds.counted += counted
	rounds.missed += load.Missed.Load()
	verdict.Violations = append(verdict.Violations, broken...)
	campaign.judge(round, "hot keys "+hot, faults, load, verdict, recovered, why)
}

// lapsed has the servers that were not killed, and are other incarnations than before all the same: their leases ended in foul
// weather, since neither etcd nor a coordinator was heard for too long.
func (rounds *ClusterRounds) lapsed(before map[int]string, killed []Death, from, to time.Duration) ([]Death, error) {
	after, err := rounds.cluster.Incarnations()
	var lapsed []Death
	for server, incarnation := range after {
		isKilled := false
		for _, death := range killed {
			isKilled = isKilled || death.server == server
		}
		if incarnation != before[server] && !isKilled {
			rounds.lapses++
			lapsed = append(lapsed, Death{server, from, to})
		}
	}
	return lapsed, err
}
