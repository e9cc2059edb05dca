package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// A request that is not answered within this has an unknown outcome.
const answersWithin = 3 * time.Second

// Who can be asked: an ordinary client's connection to one server, or a smart client.
type Client interface {
	// An error is the connection's; what the server says is the output.
	Ask(key string, in Input, meta bool) (Output, error)
	Close()
}

// A client's connection; not used any more after an error of it.
type Conn struct {
	stream net.Conn
	reader *bufio.Reader
	// What the last meta reply said behind its `L`, if anything.
	token string
}

func Dial(server *Node) (*Conn, error) { return dial(server.IP() + ":11211") }

func dial(address string) (*Conn, error) {
	stream, err := net.DialTimeout("tcp", address, 500*time.Millisecond)
	if err != nil {
		return nil, err
	}
	return &Conn{stream: stream, reader: bufio.NewReader(stream)}, nil
}

func (conn *Conn) Close() { _ = conn.stream.Close() }

// Ask sends one operation, by the meta commands or by the older ones.
func (conn *Conn) Ask(key string, in Input, meta bool) (Output, error) {
	if meta {
		return conn.askMeta(key, in, "")
	}
	return conn.send(classic(key, in), in)
}

// askMeta sends it with these flags, too.
func (conn *Conn) askMeta(key string, in Input, flags string) (Output, error) {
	return conn.send(meta(key, in, flags), in)
}

func (conn *Conn) send(request string, in Input) (Output, error) {
	_ = conn.stream.SetDeadline(time.Now().Add(answersWithin))
	if _, err := io.WriteString(conn.stream, request); err != nil {
		return Output{}, err
	}
	return conn.answer(in)
}

func meta(key string, in Input, flags string) string {
	store := func(more string) string {
		return fmt.Sprintf("ms %s %d c%s%s\r\n%s\r\n", key, len(in.Value), more, flags, in.Value)
	}
	switch in.Kind {
	case Get:
		if in.Plain {
			return fmt.Sprintf("mg %s v%s\r\n", key, flags)
		}
		return fmt.Sprintf("mg %s c v%s\r\n", key, flags)
	case GetHome:
		return fmt.Sprintf("mg %s c v t%s\r\n", key, flags)
	case Set:
		return store("")
	case Add:
		return store(" ME")
	case Cas:
		return store(fmt.Sprintf(" C%d", in.Cas))
	case Delete:
		return fmt.Sprintf("md %s%s\r\n", key, flags)
	default:
		return fmt.Sprintf("ma %s c v%s\r\n", key, flags)
	}
}

func classic(key string, in Input) string {
	length := len(in.Value)
	switch in.Kind {
	case Get:
		if in.Plain {
			return fmt.Sprintf("get %s\r\n", key)
		}
		return fmt.Sprintf("gets %s\r\n", key)
	case Set:
		return fmt.Sprintf("set %s 0 0 %d\r\n%s\r\n", key, length, in.Value)
	case Cas:
		return fmt.Sprintf("cas %s 0 0 %d %d\r\n%s\r\n", key, length, in.Cas, in.Value)
	case Delete:
		return fmt.Sprintf("delete %s\r\n", key)
	case Incr:
		return fmt.Sprintf("incr %s 1\r\n", key)
	default:
		panic(in.Kind.String() + " is a meta command's alone")
	}
}

func (conn *Conn) line() (string, error) {
	line, err := conn.reader.ReadString('\n')
	return strings.TrimSuffix(line, "\r\n"), err
}

func (conn *Conn) value(length string) (string, error) {
	count, err := strconv.Atoi(length)
	if err != nil {
		return "", err
	}
	bytes := make([]byte, count+2)
	if _, err := io.ReadFull(conn.reader, bytes); err != nil {
		return "", err
	}
	if string(bytes[count:]) != "\r\n" {
		return "", errors.New("a value of another length")
	}
	return string(bytes[:count]), nil
}

func (conn *Conn) answer(in Input) (Output, error) {
	line, err := conn.line()
	if err != nil {
		return Output{}, err
	}
	words := strings.Fields(line)
	if len(words) == 0 {
		return Output{}, errors.New("an empty line")
	}
	out := Output{Outcome: Done}
	conn.token = ""
	for _, word := range words[1:] {
		// Only meta commands answer so.
		if cas, found := strings.CutPrefix(word, "c"); found {
			out.Cas, err = strconv.ParseUint(cas, 10, 64)
		}
		if token, found := strings.CutPrefix(word, "L"); found {
			conn.token = token
		}
	}
	if err != nil {
		return Output{}, err
	}
	switch words[0] {
	case "HD", "STORED", "DELETED":
	case "NF", "EN", "END", "NOT_FOUND":
		out.Outcome = Missing
	case "EX", "EXISTS", "NS":
		out.Outcome = Exists
	case "VA":
		out.Value, err = conn.value(words[1])
	case "VALUE":
		if out.Value, err = conn.value(words[3]); err == nil && len(words) > 4 {
			out.Cas, err = strconv.ParseUint(words[4], 10, 64)
		}
		if err == nil {
			_, err = conn.line()
		}
	case "SERVER_ERROR":
		out.Outcome, out.Error = Unknown, line
	default:
		if _, number := strconv.ParseUint(line, 10, 64); in.Kind != Incr || number != nil {
			return Output{}, fmt.Errorf("%s is answered by %q", in.Kind, line)
		}
		out.Value = line
	}
	return out, err
}
