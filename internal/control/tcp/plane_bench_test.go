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

// cpuTime returns the CPU time that this process has used.
func cpuTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}

	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkScale measures the CPU time that groups of several sizes use. The ranks are in this
// process and connect over the loopback interface. The metrics are the time per rank for joining
// the group ("join"), the time per message of an exchange ("exchange"), and the time per rank from
// the loss of a rank until all ranks have exchanged fault reports ("death").
func BenchmarkScale(b *testing.B) {
	for _, rankCount := range []int{16, 32, 64, 128} {
		if testing.Short() && rankCount > 32 {
			continue // larger groups would take half a minute
		}

		b.Run(fmt.Sprintf("ranks=%d", rankCount), func(b *testing.B) {
			for b.Loop() {
				benchScale(b, rankCount)
			}
		})
	}
}

func benchScale(b *testing.B, rankCount int) {
	const exchangeCount = 10
	store, dial := newBenchStore(b)
	planes := make([]*Plane, rankCount)
	// runOnEach calls f for all ranks at the same time and returns the CPU time of these calls. An
	// error of a rank fails the benchmark.
	runOnEach := func(f func(rank int) error) time.Duration {
		begin := cpuTime(b)
		errs := ranktest.CollectErrors(rankCount, f)
		check(b, errors.Join(errs...))
		return cpuTime(b) - begin
	}
	ranks := make([]int, rankCount)
	for r := range ranks {
		ranks[r] = r
	}

	joinTime := runOnEach(func(rank int) error {
		client := dial()
		p, joinErr := Join(b.Context(), Config{
			Store: client, Timeout: hangTimeout, Host: "127.0.0.1",
			Group: driver.GroupConfig{ID: "scale", Ranks: ranks, Rank: rank},
		})
		planes[rank] = p
		closeErr := client.Close()
		return errors.Join(joinErr, closeErr)
	})
	payload := make([]byte, 142) // as large as the message of an agreement
	exchangeTime := runOnEach(func(rank int) error {
		for range exchangeCount {
			_, err := planes[rank].Exchange(b.Context(), driver.LaneControl, payload)
			if err != nil {
				return err
			}
		}

		return nil
	})
	deathTime := runOnEach(func(rank int) error {
		if rank == 0 { // closes its connections, so that the other ranks lose it
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
	err := store.Close()
	check(b, err)
	messageCount := exchangeCount * rankCount * (rankCount - 1) // each rank sends to all others
	perRank := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(rankCount) }
	b.ReportMetric(perRank(joinTime), "join-µs/rank")
	b.ReportMetric(float64(exchangeTime.Microseconds())/float64(messageCount), "exchange-µs/message")
	b.ReportMetric(perRank(deathTime), "death-µs/rank")
}

// newBenchStore starts a server of a store. dial returns a new client of the store, and panics if
// it cannot connect.
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
