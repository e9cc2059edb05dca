package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
)

// Three of each kind but proxies, each with a network of its own on one bridge, on which the clients are too.
const each = 3

const (
	bridge    = "rounds"
	clientsAt = "10.77.0.254/24"
	// What no card has: frames that are sent there arrive nowhere.
	nobody = "02:00:00:00:de:ad"
)

type Role int

const (
	Server Role = iota
	Coordinator
	Etcd
	Memcached
	Proxy
)

// What a cluster is of, and what is behind and among proxies; in the order in which they are started.
var (
	clusterRoles = []Role{Etcd, Coordinator, Server}
	proxyRoles   = []Role{Memcached, Proxy}
)

func (role Role) String() string {
	return [...]string{"server", "coordinator", "etcd", "memcached", "proxy"}[role]
}

func (role Role) count() int {
	if role == Proxy {
		return 2
	}
	return each
}

// What it has is gone when it dies.
func (role Role) hasItems() bool { return role == Server || role == Memcached }

// What of MBal serves clients. Faults are planted there, and it is not put before others.
func (role Role) serves() bool { return role == Server || role == Proxy }

// A process, and where it is.
type Node struct {
	Role   Role
	Number int
	world  *World
	child  *exec.Cmd
	// Closed when the child has ended.
	ended chan struct{}
	// False while it is killed on purpose.
	expected atomic.Bool
}

type World struct {
	folder string
	mbal   string
	// Variables for what serves clients alone.
	environment []string
	// How coordinators that are started copy hot keys.
	hot   string
	Nodes []*Node
}

func (node *Node) Name() string { return fmt.Sprintf("%s%d", node.Role, node.Number) }
func (node *Node) IP() string   { return fmt.Sprintf("10.77.0.%d", 10*(int(node.Role)+1)+node.Number) }
func (node *Node) card() string { return fmt.Sprintf("%c%d", node.Role.String()[0], node.Number) }

func run(words ...string) error {
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(words, " "), err, out)
	}
	return nil
}

func runAll(commands ...string) error {
	for _, command := range commands {
		if err := run(strings.Fields(command)...); err != nil {
			return err
		}
	}
	return nil
}

// NewWorld makes the networks and starts all processes. The caller has a network of its own (unshare --net).
func NewWorld(folder, mbal, hot string, environment []string, roles []Role) (*World, error) {
	world := &World{folder: folder, mbal: mbal, hot: hot, environment: environment}
	err := runAll("ip link set lo up", "ip link add "+bridge+" type bridge", "ip addr add "+clientsAt+" dev "+bridge, "ip link set "+bridge+" up")
	if err != nil {
		return nil, err
	}
	secret := []byte("a secret of these rounds\n")
	if err := os.WriteFile(filepath.Join(folder, "secret"), secret, 0o600); err != nil {
		return nil, err
	}
	for _, role := range roles {
		for number := 1; number <= role.count(); number++ {
			node := &Node{Role: role, Number: number, world: world}
			world.Nodes = append(world.Nodes, node)
			if err := node.network(); err != nil {
				return nil, err
			}
			if err := node.Start(); err != nil {
				return nil, err
			}
		}
	}
	return world, nil
}

func (world *World) All(role Role) []*Node {
	var all []*Node
	for _, node := range world.Nodes {
		if node.Role == role {
			all = append(all, node)
		}
	}
	return all
}

// Addresses of all nodes of a role, as flags have them.
func addresses(before string, role Role, port int) string {
	var all []string
	for number := 1; number <= role.count(); number++ {
		all = append(all, fmt.Sprintf("%s%s:%d", before, (&Node{Role: role, Number: number}).IP(), port))
	}
	return strings.Join(all, ",")
}

func (world *World) withItems() []*Node {
	var all []*Node
	for _, node := range world.Nodes {
		if node.Role.hasItems() {
			all = append(all, node)
		}
	}
	return all
}

func (node *Node) network() error {
	name, card := node.Name(), node.card()
	inside := "ip -n " + name + " "
	return runAll(
		"ip netns add "+name,
		"ip link add "+card+" type veth peer name eth0 netns "+name,
		"ip link set "+card+" master "+bridge+" up",
		inside+"link set lo up", inside+"link set eth0 up", inside+"addr add "+node.IP()+"/24 dev eth0",
	)
}

func (node *Node) words() []string {
	world, ip := node.world, node.IP()
	switch node.Role {
	case Etcd:
		var members []string
		for number := 1; number <= each; number++ {
			other := &Node{Role: Etcd, Number: number}
			members = append(members, fmt.Sprintf("%s=http://%s:2380", other.Name(), other.IP()))
		}
		client, peer := "http://"+ip+":2379", "http://"+ip+":2380"
		return []string{"etcd", "--name", node.Name(), "--initial-cluster", strings.Join(members, ","), "--logger", "zap",
			"--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
			"--initial-advertise-peer-urls", peer, "--data-dir", filepath.Join(world.folder, node.Name())}
	case Coordinator:
		return []string{world.mbal, "coordinator", "--listen", ip + ":11210", "--etcd", addresses("http://", Etcd, 2379),
			"--cluster-name", "rounds", "--servers", fmt.Sprint(each), "--heartbeat-ms", "200",
			"--hot-keys", world.hot, "--lease", fmt.Sprintf("%dms", copyLease.Milliseconds()), "--imbalance-target", "1.01"}
	case Memcached:
		return []string{"memcached", "-u", "root", "-l", ip, "-p", "11211", "-U", "0", "-t", "2", "-m", "64"}
	case Proxy:
		return []string{world.mbal, "proxy", "-l", ip, "-p", "11211", "--upstream", addresses("", Memcached, 11211),
			"--imbalance-target", "1.05", "--interval", "100ms",
			"--timeout", fmt.Sprintf("%dms", upstreamAnswers.Milliseconds()), "--retry", "200ms", "--peers", addresses("", Proxy, peersAt),
			"--self", fmt.Sprintf("%s:%d", ip, peersAt), "--peer-lease", fmt.Sprintf("%dms", peerLease.Milliseconds())}
	default:
		return []string{world.mbal, "serve", "-l", ip, "-p", "11211", "-t", "2", "-m", "256", "--control", "off", "--link-port", "11311",
			"--worker-ports", "11300", "--metrics", ip + ":11212",
			"--coordinator", addresses("http://", Coordinator, 11210), "--cluster-name", "rounds", "--server-id", fmt.Sprint(node.Number),
			"--cluster-secret", filepath.Join(world.folder, "secret"), "--balance", "off"}
	}
}

func (node *Node) Start() error {
	words := append([]string{"netns", "exec", node.Name()}, node.words()...)
	if !node.Role.hasItems() && !node.Role.serves() {
		// Who says which servers live is not to wait for load.
		words = append([]string{"netns", "exec", node.Name(), "nice", "-n", "-10"}, node.words()...)
	}
	log, err := os.OpenFile(filepath.Join(node.world.folder, node.Name()+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	// ip becomes the program: what is signalled is the program itself.
	child := exec.Command("ip", words...)
	child.Stdout, child.Stderr = log, log
	if node.Role.serves() {
		child.Env = append(os.Environ(), node.world.environment...)
	}
	if err := child.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	node.child, node.ended = child, ended
	node.expected.Store(true)
	go func() {
		_ = child.Wait()
		close(ended)
	}()
	return nil
}

// Runs says whether the process is there.
func (node *Node) Runs() bool {
	select {
	case <-node.ended:
		return false
	default:
		return true
	}
}

// Kill returns when the process has ended.
func (node *Node) Kill() { node.end(syscall.SIGKILL) }

func (node *Node) end(by syscall.Signal) {
	node.expected.Store(false)
	_ = node.child.Process.Signal(by)
	<-node.ended
}

// CopyHotKeys has coordinators that copy hot keys in this way.
func (world *World) CopyHotKeys(hot string) error {
	if world.hot == hot {
		return nil
	}
	world.hot = hot
	for _, node := range world.All(Coordinator) {
		node.end(syscall.SIGTERM)
	}
	for _, node := range world.All(Coordinator) {
		if err := node.Start(); err != nil {
			return err
		}
	}
	return nil
}

func (node *Node) Stop()     { _ = node.child.Process.Signal(syscall.SIGSTOP) }
func (node *Node) Continue() { _ = node.child.Process.Signal(syscall.SIGCONT) }

// Cut takes the node off the bridge: nothing reaches it, nothing leaves it.
func (node *Node) Cut() error { return run("ip", "link", "set", node.card(), "nomaster") }
func (node *Node) Join() error {
	return run("ip", "link", "set", node.card(), "master", bridge)
}

// Mute lets what the node sends to the other go nowhere; what the other sends arrives.
func (node *Node) Mute(other *Node) error {
	return run("ip", "-n", node.Name(), "neigh", "replace", other.IP(), "lladdr", nobody, "dev", "eth0", "nud", "permanent")
}

func (node *Node) Unmute(other *Node) error {
	return run("ip", "-n", node.Name(), "neigh", "del", other.IP(), "dev", "eth0")
}
