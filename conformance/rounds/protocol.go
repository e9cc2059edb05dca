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

// A client's connection; not used any more after an error of it.
type Conn struct {
	stream net.Conn
	reader *bufio.Reader
}

func Dial(server *Node) (*Conn, error) {
	stream, err := net.DialTimeout("tcp", server.IP()+":11211", 500*time.Millisecond)
	if err != nil {
		return nil, err
	}
	return &Conn{stream, bufio.NewReader(stream)}, nil
}

func (conn *Conn) Close() { _ = conn.stream.Close() }

// Ask sends one operation, by the meta commands or by the older ones. An error is the connection's; what the server says is the output.
func (conn *Conn) Ask(key string, in Input, meta bool) (Output, error) {
	_ = conn.stream.SetDeadline(time.Now().Add(answersWithin))
	if _, err := io.WriteString(conn.stream, request(key, in, meta)); err != nil {
		return Output{}, err
	}
	return conn.answer(in)
}

func request(key string, in Input, meta bool) string {
	length := len(in.Value)
	switch {
	case in.Kind == Get && meta:
		return fmt.Sprintf("mg %s c v\r\n", key)
	case in.Kind == Get:
		return fmt.Sprintf("gets %s\r\n", key)
	case in.Kind == Set && meta:
		return fmt.Sprintf("ms %s %d c\r\n%s\r\n", key, length, in.Value)
	case in.Kind == Set:
		return fmt.Sprintf("set %s 0 0 %d\r\n%s\r\n", key, length, in.Value)
	case in.Kind == Cas && meta:
		return fmt.Sprintf("ms %s %d c C%d\r\n%s\r\n", key, length, in.Cas, in.Value)
	case in.Kind == Cas:
		return fmt.Sprintf("cas %s 0 0 %d %d\r\n%s\r\n", key, length, in.Cas, in.Value)
	case in.Kind == Delete && meta:
		return fmt.Sprintf("md %s\r\n", key)
	case in.Kind == Delete:
		return fmt.Sprintf("delete %s\r\n", key)
	case meta:
		return fmt.Sprintf("ma %s c v\r\n", key)
	default:
		return fmt.Sprintf("incr %s 1\r\n", key)
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
	for _, word := range words[1:] {
		// Only meta commands answer so.
		if cas, found := strings.CutPrefix(word, "c"); found {
			out.Cas, err = strconv.ParseUint(cas, 10, 64)
		}
	}
	if err != nil {
		return Output{}, err
	}
	switch words[0] {
	case "HD", "STORED", "DELETED":
	case "NF", "EN", "END", "NOT_FOUND":
		out.Outcome = Missing
	case "EX", "EXISTS":
		out.Outcome = Exists
	case "VA":
		out.Value, err = conn.value(words[1])
	case "VALUE":
		if out.Value, err = conn.value(words[3]); err == nil {
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
