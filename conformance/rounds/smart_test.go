package main

import (
	"fmt"
	"net/url"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestASmartClientFindsKeysWhereTheVectorsHaveThem(t *testing.T) {
	text, err := os.ReadFile("../vectors/map.txt")
	if err != nil {
		t.Fatal(err)
	}
	_, text2, _ := strings.Cut(string(text), "\n")
	chart, err := parseChart(strings.Replace(text2, "version 9", "version 9.4", 1), 1)
	if err != nil || chart.version != 9 || chart.locals[1] != 4 {
		t.Fatal(err, chart)
	}
	vectors, err := os.ReadFile("../vectors/placement.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(vectors)), "\n") {
		words := strings.Split(line, "\t")
		if strings.HasPrefix(line, "#") || len(words) < 5 {
			continue
		}
		key, err := url.PathUnescape(words[0])
		if err != nil {
			t.Fatal(err)
		}
		slice := chart.slice(key)
		if slice == nil || fmt.Sprintf("%d/%d", slice.server, slice.worker) != words[4] {
			t.Errorf("%s: %v, not %s", words[0], slice, words[4])
		}
	}
}

func TestTokensOfLeasesAreRead(t *testing.T) {
	now := time.Now()
	lease, found := parseLease("~1000.1,4", now)
	if want := (Lease{until: now.Add(time.Second), suffixes: []byte{1, 4}}); !found || !reflect.DeepEqual(lease, want) {
		t.Error(lease)
	}
	if lease, found := parseLease("=50.2", now); !found || !reflect.DeepEqual(lease.suffixes, []byte{2}) {
		t.Error(lease)
	}
	for _, token := range []string{"", "9.4.1", "~1000", "~1000.", "~1000.0", "~1000.256", "~.1"} {
		if _, found := parseLease(token, now); found {
			t.Errorf("%q is none", token)
		}
	}
}
