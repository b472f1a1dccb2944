package tcp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/ranktest"
	"symmem/internal/rendezvous"
)

func cpuTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkScale measures the CPU time of groups of several sizes, whose ranks are in this process
// and connect over the loopback interface. "join" is the time per rank of joining, "death" is the
// time per rank after one rank is lost, and "exchange" is the time per message.
func BenchmarkScale(b *testing.B) {
	for _, n := range []int{16, 32, 64, 128} {
		if testing.Short() && n > 32 {
			continue // they would take half a minute
		}
		b.Run(fmt.Sprintf("ranks=%d", n), func(b *testing.B) {
			for b.Loop() {
				benchScale(b, n)
			}
		})
	}
}

const exchangeCount = 10

func benchScale(b *testing.B, n int) {
	store, dial := newBenchStore(b)
	planes := make([]*Plane, n)
	runOnEach := func(f func(rank int) error) time.Duration {
		begin := cpuTime(b)
		check(b, errors.Join(ranktest.CollectErrors(n, f)...))
		return cpuTime(b) - begin
	}
	ranks := make([]int, n)
	for r := range ranks {
		ranks[r] = r
	}
	join := runOnEach(func(rank int) (err error) {
		client := dial()
		planes[rank], err = Join(b.Context(), Config{
			Store: client, Timeout: hangTimeout, Host: "127.0.0.1",
			Group: driver.GroupConfig{ID: "scale", Ranks: ranks, Rank: rank},
		})
		return errors.Join(err, client.Close())
	})
	exchange := runOnEach(func(rank int) error {
		for range exchangeCount {
			_, err := planes[rank].Exchange(b.Context(), driver.LaneControl, make([]byte, 142))
			if err != nil {
				return err
			}
		}
		return nil
	})
	death := runOnEach(func(rank int) error {
		if rank == 0 {
			for _, l := range planes[0].links[1:] {
				_ = l.conn.Close()
			}
			return nil
		}
		_, err := planes[rank].Exchange(b.Context(), driver.LaneControl, nil)
		if err == nil {
			return errors.New("Exchange succeeded although a rank is lost")
		}
		ctx, cancel := context.WithTimeout(b.Context(), hangTimeout)
		defer cancel()
		_, err = planes[rank].Exchange(ctx, driver.LaneFault, []byte("lost"))
		return err
	})
	runOnEach(func(rank int) error { return planes[rank].Close() })
	check(b, store.Close())
	pairs := float64(n * (n - 1))
	b.ReportMetric(float64(join.Microseconds())/float64(n), "join-µs/rank")
	b.ReportMetric(float64(exchange.Microseconds())/(exchangeCount*pairs), "exchange-µs/message")
	b.ReportMetric(float64(death.Microseconds())/float64(n), "death-µs/rank")
}

// newBenchStore serves a store over TCP. dial returns a new client.
func newBenchStore(b *testing.B) (server *rendezvous.Server, dial func() *rendezvous.Client) {
	token := rendezvous.NewToken()
	server, err := rendezvous.Listen("127.0.0.1:0", token)
	check(b, err)
	var mu sync.Mutex // one rank dials at a time, so that few connections are unauthenticated
	return server, func() *rendezvous.Client {
		mu.Lock()
		defer mu.Unlock()
		client, err := rendezvous.Dial(b.Context(), rendezvous.Endpoint{
			Address: server.Address(), Token: token,
		})
		if err != nil {
			panic(err)
		}
		return client
	}
}
