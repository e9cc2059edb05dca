package main

import (
	"errors"
	"fmt"
	"math/rand"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"
)

// A client that asks each key's owner, and reads copies of hot keys by its leases. Written from docs/design/protocol.md, cluster.md and
// hotkeys.md alone. It has one request under way at a time.
type Smart struct {
	servers []*Node
	conns   map[string]*Conn
	random  *rand.Rand
	chart   Chart
	lookAt  time.Time
	leases  map[string]Lease
	// Reads that were answered from copies.
	copies *atomic.Int64
}

// Where keys are, as far as a client knows.
type Chart struct {
	version int
	// By server: the newest local version that was heard of, its workers' addresses.
	locals  map[int]int
	workers map[int][]string
	slices  []Slice
}

// Virtual nodes that begin with the first `bits` of `first` are one worker's.
type Slice struct {
	first, bits    uint64
	server, worker int
}

// What a home has told of a key's copies.
type Lease struct {
	until    time.Time
	suffixes []byte
	// The newest that copies have shown.
	seen Edition
}

// What a copy has: a grant and a version.
type Edition [2]uint64

// A server that does not say what it knows within this is not asked further.
const chartWithin = 300 * time.Millisecond

func NewSmart(servers []*Node, random *rand.Rand, copies *atomic.Int64) *Smart {
	return &Smart{servers: servers, conns: map[string]*Conn{}, random: random, leases: map[string]Lease{}, copies: copies}
}

func (smart *Smart) Close() {
	for _, conn := range smart.conns {
		conn.Close()
	}
}

// Ask sends one operation, always by a meta command.
func (smart *Smart) Ask(key string, in Input, _ bool) (Output, error) {
	if now := time.Now(); now.After(smart.lookAt) {
		smart.lookAt = now.Add(time.Second)
		smart.look()
	}
	if in.Kind == Get {
		if suffix, seen := smart.choose(key); suffix > 0 {
			if server, address, found := smart.chart.place(key, suffix); found {
				mark := fmt.Sprintf("*%d.%d", seen[0], seen[1])
				if out, err := smart.ask(server, address, key, in, mark); err != errUnreached {
					return out, err
				}
				delete(smart.leases, key)
			}
		}
	}
	server, address, found := smart.chart.owner(key)
	if !found {
		smart.lookAt = time.Time{}
		return Output{}, errors.New("no server is known")
	}
	return smart.ask(server, address, key, in, "")
}

// Nothing was sent.
var errUnreached = errors.New("not reached")

func (smart *Smart) ask(server int, address, key string, in Input, mark string) (Output, error) {
	conn, err := smart.conn(address)
	if err != nil {
		return Output{}, errUnreached
	}
	asked := time.Now()
	out, err := conn.askMeta(key, in, fmt.Sprintf(" L%d.%d%s", smart.chart.version, smart.chart.locals[server], mark))
	if err != nil {
		conn.Close()
		delete(smart.conns, address)
		delete(smart.leases, key)
		return out, err
	}
	smart.heed(key, server, conn.token, asked, mark != "")
	if mark != "" && out.Outcome == Done && (conn.token == "" || conn.token[0] == '@') {
		smart.copies.Add(1)
	}
	return out, nil
}

func (smart *Smart) conn(address string) (*Conn, error) {
	if conn := smart.conns[address]; conn != nil {
		return conn, nil
	}
	conn, err := dial(address)
	if err == nil {
		smart.conns[address] = conn
	}
	return conn, err
}

// choose has the suffix to ask for, or 0 for the home, and what its copy must not be older than.
func (smart *Smart) choose(key string) (suffix byte, seen Edition) {
	lease, found := smart.leases[key]
	if !found {
		return 0, seen
	}
	if !time.Now().Before(lease.until) {
		delete(smart.leases, key)
		return 0, seen
	}
	if at := smart.random.Intn(len(lease.suffixes) + 1); at > 0 {
		suffix = lease.suffixes[at-1]
	}
	return suffix, lease.seen
}

// heed takes what the reply of a server said behind its `L`.
func (smart *Smart) heed(key string, server int, token string, asked time.Time, marked bool) {
	if token == "" && marked {
		return
	}
	if known, found := smart.leases[key]; token != "" && token[0] == '@' && marked {
		var edition Edition
		if _, err := fmt.Sscanf(token, "@%d.%d", &edition[0], &edition[1]); err == nil && found && known.seen.isBefore(edition) {
			known.seen = edition
			smart.leases[key] = known
		}
		return
	}
	lease, isLease := parseLease(token, asked)
	if !isLease || marked {
		delete(smart.leases, key)
	}
	if isLease {
		lease.seen = smart.leases[key].seen
		smart.leases[key] = lease
		return
	}
	smart.follow(key, server, token)
}

func (edition Edition) isBefore(other Edition) bool {
	return edition[0] < other[0] || edition[0] == other[0] && edition[1] < other[1]
}

// follow takes a token about the key's owner.
func (smart *Smart) follow(key string, asked int, token string) {
	words := strings.Split(token, ".")
	version, err := strconv.Atoi(words[0])
	if err != nil || version < smart.chart.version {
		return
	}
	if version > smart.chart.version {
		smart.lookAt = time.Time{}
		return
	}
	if len(words) != 3 || strings.Contains(words[2], "/") {
		return
	}
	worker, err := strconv.Atoi(words[2])
	local, wrong := strconv.Atoi(words[1])
	if err != nil || wrong != nil {
		return
	}
	smart.chart.locals[asked] = max(smart.chart.locals[asked], local)
	if slice := smart.chart.slice(key); slice != nil && slice.server == asked {
		slice.worker = worker
	}
}

// parseLease reads `~1000.1,2` and `=1000.1,2`.
func parseLease(token string, asked time.Time) (Lease, bool) {
	if token == "" || token[0] != '~' && token[0] != '=' {
		return Lease{}, false
	}
	lasts, list, found := strings.Cut(token[1:], ".")
	var lease Lease
	ms, err := strconv.Atoi(lasts)
	if !found || err != nil {
		return Lease{}, false
	}
	lease.until = asked.Add(time.Duration(ms) * time.Millisecond)
	for _, word := range strings.Split(list, ",") {
		suffix, err := strconv.ParseUint(word, 10, 8)
		if err != nil || suffix == 0 {
			return Lease{}, false
		}
		lease.suffixes = append(lease.suffixes, byte(suffix))
	}
	return lease, true
}

// look asks any server for the map, until one has said it.
func (smart *Smart) look() {
	for _, at := range smart.random.Perm(len(smart.servers)) {
		conn, err := Dial(smart.servers[at])
		if err != nil {
			continue
		}
		text, err := conn.chart()
		conn.Close()
		if err == nil {
			smart.learn(text, smart.servers[at].Number)
			return
		}
	}
}

func (conn *Conn) chart() (string, error) {
	_ = conn.stream.SetDeadline(time.Now().Add(chartWithin))
	if _, err := conn.stream.Write([]byte("config get mbal\r\n")); err != nil {
		return "", err
	}
	line, err := conn.line()
	words := strings.Fields(line)
	if err != nil || len(words) != 4 || words[0] != "CONFIG" {
		return "", errors.Join(errors.New("no map"), err)
	}
	return conn.value(words[3])
}

// learn takes a document, if its map is newer than what is known.
func (smart *Smart) learn(text string, from int) {
	chart, err := parseChart(text, from)
	if err == nil && chart.version > smart.chart.version {
		smart.chart = chart
		// A copy may be elsewhere by it.
		smart.leases = map[string]Lease{}
	}
}

func parseChart(text string, from int) (Chart, error) {
	chart := Chart{locals: map[int]int{}, workers: map[int][]string{}}
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		words := strings.Fields(line)
		var err error
		switch words[0] {
		case "cluster":
		case "version":
			var local int
			_, err = fmt.Sscanf(words[1], "%d.%d", &chart.version, &local)
			chart.locals[from] = local
		case "server":
			var id int
			id, err = strconv.Atoi(words[1])
			for at := 2; at+1 < len(words); at += 2 {
				switch words[at] {
				case "link", "client":
					if words[at] == "client" && chart.workers[id] == nil {
						chart.workers[id] = words[at+1 : at+2]
					}
				case "workers":
					chart.workers[id] = strings.Split(words[at+1], ",")
				default:
					err = errors.New(line)
				}
			}
		case "cachelet":
			var slice Slice
			_, err = fmt.Sscanf(words[1]+" "+words[2], "%x/%d %d/%d", &slice.first, &slice.bits, &slice.server, &slice.worker)
			chart.slices = append(chart.slices, slice)
		default:
			err = errors.New(line)
		}
		if err != nil {
			return chart, err
		}
	}
	return chart, nil
}

func (chart *Chart) slice(key string) *Slice {
	node := xxh3.HashString(key) >> 48
	for at := range chart.slices {
		slice := &chart.slices[at]
		if node>>(16-slice.bits) == slice.first>>(16-slice.bits) {
			return slice
		}
	}
	return nil
}

func (chart *Chart) owner(key string) (server int, address string, found bool) {
	slice := chart.slice(key)
	if slice == nil {
		return 0, "", false
	}
	return slice.server, chart.address(slice.server, slice.worker), true
}

func (chart *Chart) address(server, worker int) string {
	workers := chart.workers[server]
	return workers[worker%len(workers)]
}

// place says where the copy of this suffix is: the rendezvous of docs/design/hotkeys.md.
func (chart *Chart) place(key string, suffix byte) (server int, address string, found bool) {
	hash := xxh3.HashString(key + "\x00" + string([]byte{suffix}))
	var most uint64
	for id := range chart.workers {
		if score := mix(hash ^ mix(uint64(id)+1)); !found || score > most {
			server, most, found = id, score, true
		}
	}
	if !found {
		return 0, "", false
	}
	return server, chart.address(server, int(hash&0xffff_ffff%uint64(len(chart.workers[server])))), true
}

// mix is the finaliser of splitmix64.
func mix(bits uint64) uint64 {
	bits = (bits ^ bits>>30) * 0xbf58476d1ce4e5b9
	bits = (bits ^ bits>>27) * 0x94d049bb133111eb
	return bits ^ bits>>31
}
