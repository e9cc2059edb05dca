package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"
)

// The cluster as its coordinator tells it, and what is asked of it.
type Cluster struct {
	world *World
	http  http.Client
	mutex sync.Mutex
	// The newest map that was seen, and all owners that a cachelet may have had since.
	seen    int
	owners  map[string]int
	maybe   map[string]map[int]bool
	ordered int
	// How many maps were seen.
	versions int
	// Reads from copies, and those that smart clients know of.
	copyReads  Tally
	smartReads atomic.Int64
}

type Status struct {
	MapVersion int `json:"map_version"`
	Servers    []struct {
		ID          int    `json:"id"`
		Incarnation string `json:"incarnation"`
		State       string `json:"state"`
		MapVersion  int    `json:"map_version"`
	} `json:"servers"`
	Moves []struct {
		Number int    `json:"number"`
		Prefix string `json:"prefix"`
		From   int    `json:"from"`
		To     int    `json:"to"`
	} `json:"moves"`
}

func NewCluster(world *World) *Cluster {
	client := http.Client{Timeout: 1500 * time.Millisecond, Transport: &http.Transport{DisableKeepAlives: true}}
	return &Cluster{world: world, http: client, owners: map[string]int{}, maybe: map[string]map[int]bool{}, copyReads: Tally{}}
}

// call asks the coordinator that leads; the error is of the last one.
func (cluster *Cluster) call(method, path, body string) (int, string, error) {
	var last error
	for _, node := range cluster.world.All(Coordinator) {
		request, err := http.NewRequest(method, "http://"+node.IP()+":11210"+path, strings.NewReader(body))
		if err != nil {
			return 0, "", err
		}
		request.Header.Set("Content-Type", "application/json")
		answer, err := cluster.http.Do(request)
		if err != nil {
			last = err
			continue
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err == nil && answer.StatusCode < 500 {
			return answer.StatusCode, string(text), nil
		}
		last = fmt.Errorf("%s: %d %s", node.Name(), answer.StatusCode, text)
	}
	return 0, "", last
}

func (cluster *Cluster) Status() (Status, error) {
	var status Status
	code, text, err := cluster.call("GET", "/v1/status", "")
	if err == nil && code != 200 {
		err = fmt.Errorf("status %d: %s", code, text)
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &status)
	}
	return status, err
}

// Incarnations are of all servers: one that dropped what it had, since its lease was over, has another afterwards.
func (cluster *Cluster) Incarnations() (map[int]string, error) {
	status, err := cluster.Status()
	incarnations := map[int]string{}
	for _, server := range status.Servers {
		incarnations[server.ID] = server.Incarnation
	}
	return incarnations, err
}

// Lost says that a server is dead, until a coordinator has heard it, or twenty seconds are over.
func (cluster *Cluster) Lost(number int) {
	for began := time.Now(); time.Since(began) < 20*time.Second; time.Sleep(100 * time.Millisecond) {
		if code, _, err := cluster.call("POST", fmt.Sprintf("/v1/servers/%d/lost", number), `{"force":true}`); err == nil && code < 300 {
			return
		}
	}
}

// Look notes the newest map. Owners that a cachelet had are forgotten as possible ones when a round begins anew.
func (cluster *Cluster) Look() error {
	code, text, err := cluster.call("GET", "/v1/map", "")
	if err != nil || code != 200 {
		return fmt.Errorf("no map: %d %w", code, err)
	}
	version, owners := parseMap(text)
	cluster.mutex.Lock()
	defer cluster.mutex.Unlock()
	if version > cluster.seen {
		cluster.seen, cluster.owners = version, owners
		cluster.versions++
		for prefix, owner := range owners {
			cluster.mark(prefix, owner)
		}
	}
	return nil
}

func (cluster *Cluster) mark(prefix string, server int) {
	if cluster.maybe[prefix] == nil {
		cluster.maybe[prefix] = map[int]bool{}
	}
	cluster.maybe[prefix][server] = true
}

func parseMap(text string) (int, map[string]int) {
	version, owners := 0, map[string]int{}
	for _, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		switch {
		case len(words) == 2 && words[0] == "version":
			version, _ = strconv.Atoi(words[1])
		case len(words) == 3 && words[0] == "cachelet":
			server, _, _ := strings.Cut(words[2], "/")
			owners[words[1]], _ = strconv.Atoi(server)
		}
	}
	return version, owners
}

// Settled forgets where cachelets may have been: all is still, and the map that was seen last is the one.
func (cluster *Cluster) Settled() {
	cluster.mutex.Lock()
	defer cluster.mutex.Unlock()
	cluster.maybe = map[string]map[int]bool{}
	for prefix, owner := range cluster.owners {
		cluster.mark(prefix, owner)
	}
}

// OrderMove orders the move of any cachelet to any server. It is noted first: an order that was not answered may be given.
func (cluster *Cluster) OrderMove(random *rand.Rand) {
	cluster.mutex.Lock()
	prefixes := cluster.prefixes()
	if len(prefixes) == 0 {
		cluster.mutex.Unlock()
		return
	}
	prefix, to := prefixes[random.Intn(len(prefixes))], 1+random.Intn(each)
	cluster.mark(prefix, to)
	cluster.mutex.Unlock()
	body := fmt.Sprintf(`{"prefix":"%s","server":%d}`, prefix, to)
	if code, _, err := cluster.call("POST", "/v1/moves", body); err == nil && code < 300 {
		cluster.mutex.Lock()
		cluster.ordered++
		cluster.mutex.Unlock()
	}
}

// MayHold says which servers may have had a key at some moment of this round, by maps and orders that were seen.
func (cluster *Cluster) MayHold(key string, server int) bool {
	cluster.mutex.Lock()
	defer cluster.mutex.Unlock()
	for prefix, servers := range cluster.maybe {
		if covers(prefix, key) {
			return servers[server]
		}
	}
	return true
}

// Owner is who has a key by the newest map that was seen.
func (cluster *Cluster) Owner(key string) int {
	cluster.mutex.Lock()
	defer cluster.mutex.Unlock()
	for prefix, owner := range cluster.owners {
		if covers(prefix, key) {
			return owner
		}
	}
	return 0
}

// AnyOwner is a server that has something by the newest map that was seen.
func (cluster *Cluster) AnyOwner(random *rand.Rand) int {
	cluster.mutex.Lock()
	defer cluster.mutex.Unlock()
	prefixes := cluster.prefixes()
	return cluster.owners[prefixes[random.Intn(len(prefixes))]]
}

// prefixes are in order: maps are walked in none, and the seed is to say what is drawn.
func (cluster *Cluster) prefixes() []string {
	prefixes := make([]string, 0, len(cluster.owners))
	for prefix := range cluster.owners {
		prefixes = append(prefixes, prefix)
	}
	sort.Strings(prefixes)
	return prefixes
}

func covers(prefix, key string) bool {
	first, bits, _ := strings.Cut(prefix, "/")
	node, _ := strconv.ParseUint(first, 16, 16)
	width, _ := strconv.Atoi(bits)
	return xxh3.HashString(key)>>(64-width) == node>>(16-width)
}

// CopyReads counts reads that were answered from copies, since the first call. A server that died has taken its last ones with it.
func (cluster *Cluster) CopyReads() int64 {
	for _, node := range cluster.world.All(Server) {
		answer, err := cluster.http.Get("http://" + node.IP() + ":11212/metrics")
		if err != nil {
			continue
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		_, after, found := strings.Cut(string(text), "\nmbal_copy_reads_total ")
		line, _, _ := strings.Cut(after, "\n")
		count, wrong := strconv.ParseInt(line, 10, 64)
		if err != nil || !found || wrong != nil {
			continue
		}
		cluster.copyReads.Note(node, count)
	}
	return cluster.copyReads.Ever()
}

func (cluster *Cluster) Counts() (ordered, versions int) {
	cluster.mutex.Lock()
	defer cluster.mutex.Unlock()
	return cluster.ordered, cluster.versions
}
