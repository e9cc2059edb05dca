package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Faults are over: so long may it take until everything is as before. A lease of etcd, an election of etcd, a link that is dialed
// again, a move that is tried again with the longest patience.
const recoversWithin = 60 * time.Second

// AwaitRecovery waits until no move is under way, all servers follow the newest map and reach all keys; the error says what is not so.
func (cluster *Cluster) AwaitRecovery() error {
	if err := within(recoversWithin, cluster.isWell); err != nil {
		return err
	}
	return cluster.Look()
}

// within waits until nothing is said to be wrong.
func within(bound time.Duration, wrong func() error) error {
	deadline := time.Now().Add(bound)
	for {
		why := wrong()
		if why == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not well within %v: %w", bound, why)
		}
		time.Sleep(30 * time.Millisecond)
	}
}

func (cluster *Cluster) isWell() error {
	for _, node := range cluster.world.Nodes {
		if !node.Runs() {
			return fmt.Errorf("%s has ended", node.Name())
		}
	}
	status, err := cluster.Status()
	if err != nil {
		return err
	}
	if status.MapVersion == 0 || len(status.Servers) != each {
		return fmt.Errorf("map %d, %d servers", status.MapVersion, len(status.Servers))
	}
	if len(status.Moves) > 0 {
		move := status.Moves[0]
		return fmt.Errorf("%d moves, of them %d: %s from %d to %d", len(status.Moves), move.Number, move.Prefix, move.From, move.To)
	}
	for _, server := range status.Servers {
		if server.State != "serving" || server.MapVersion != status.MapVersion {
			return fmt.Errorf("server %d is %s at map %d of %d", server.ID, server.State, server.MapVersion, status.MapVersion)
		}
	}
	for _, server := range cluster.world.All(Server) {
		if err := reachesAll(server, status.MapVersion); err != nil {
			return fmt.Errorf("%s: %w", server.Name(), err)
		}
	}
	return nil
}

// Connections go to the worker with the fewest: so many that are open together reach every worker, however the load's are spread.
const probing = clients + 4

// reachesAll asks each worker of a server for its map, and for keys of all owners.
func reachesAll(server *Node, version int) error {
	for range probing {
		conn, err := Dial(server)
		if err != nil {
			return err
		}
		// All are open until all have asked.
		defer conn.Close()
		if err = conn.reachesAll(version); err != nil {
			return err
		}
	}
	return nil
}

func (conn *Conn) reachesAll(version int) error {
	_ = conn.stream.SetDeadline(time.Now().Add(answersWithin))
	var text strings.Builder
	const probes = 60
	for number := range probes {
		fmt.Fprintf(&text, "delete probe%d\r\n", number)
	}
	text.WriteString("config get mbal\r\n")
	if _, err := conn.stream.Write([]byte(text.String())); err != nil {
		return err
	}
	for range probes {
		line, err := conn.line()
		if err != nil || line != "NOT_FOUND" {
			return errors.Join(errors.New(line), err)
		}
	}
	for {
		line, err := conn.line()
		if err != nil {
			return err
		}
		if line == "END" || line == "ERROR" {
			return errors.New("no map")
		}
		if said, found := strings.CutPrefix(line, "version "); found {
			own, _, _ := strings.Cut(strings.TrimSpace(said), ".")
			if own != strconv.Itoa(version) {
				return fmt.Errorf("map %s, not %d", own, version)
			}
			return nil
		}
	}
}
