// What an application does with gomemcache (text protocol), plain and by TLS.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func assert(holds bool, what string) {
	if !holds {
		log.Panic(what)
	}
}

func use(client *memcache.Client) {
	client.Timeout = time.Minute
	check(client.Set(&memcache.Item{Key: "k", Value: []byte("value"), Flags: 7}))
	item, err := client.Get("k")
	check(err)
	assert(string(item.Value) == "value" && item.Flags == 7, "get")
	keys := []string{"nosuch"}
	for i := 0; i < 100; i++ {
		key := fmt.Sprintf("g%d", i)
		keys = append(keys, key)
		check(client.Set(&memcache.Item{Key: key, Value: []byte(key)}))
	}
	items, err := client.GetMulti(keys)
	check(err)
	assert(len(items) == 100, "multi-get")
	item.Value = []byte("other")
	check(client.CompareAndSwap(item))
	assert(errors.Is(client.CompareAndSwap(item), memcache.ErrCASConflict), "a late cas")
	assert(errors.Is(client.Add(item), memcache.ErrNotStored), "add")
	check(client.Set(&memcache.Item{Key: "n", Value: []byte("8")}))
	sum, err := client.Increment("n", 5)
	check(err)
	assert(sum == 13, "incr")
	large := make([]byte, 1_000_000)
	_, err = rand.Read(large)
	check(err)
	check(client.Set(&memcache.Item{Key: "large", Value: large}))
	item, err = client.Get("large")
	check(err)
	assert(bytes.Equal(item.Value, large), "a large value")
	check(client.Set(&memcache.Item{Key: "soon", Value: large[:1], Expiration: 1}))
	for until := time.Now().Add(30 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		if _, err = client.Get("soon"); errors.Is(err, memcache.ErrCacheMiss) {
			break
		}
		check(err)
		assert(time.Now().Before(until), "it should have expired long ago")
	}
	check(client.Touch("k", 100))
	check(client.Delete("k"))
	check(client.Ping())
}

func main() {
	use(memcache.New("127.0.0.1:" + os.Getenv("PLAIN")))
	if os.Getenv("TLS") == "0" {
		fmt.Println("plain alone")
		return
	}
	pem, err := os.ReadFile(os.Getenv("CERT"))
	check(err)
	roots := x509.NewCertPool()
	assert(roots.AppendCertsFromPEM(pem), "the certificate")
	client := memcache.New("127.0.0.1:" + os.Getenv("TLS"))
	client.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		dialer := tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: "localhost"}}
		return dialer.DialContext(ctx, network, address)
	}
	use(client)
	fmt.Println("plain and TLS")
}
