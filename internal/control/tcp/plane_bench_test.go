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

// BenchmarkScale measures the CPU time that groups of different sizes need to join, to exchange
// messages and to notice a lost rank.
func BenchmarkScale(b *testing.B) {
	for _, rankCount := range []int{16, 32, 64, 128} {
		if testing.Short() && rankCount > 32 {
			continue // takes half a minute
		}

		b.Run(fmt.Sprintf("ranks=%d", rankCount), func(b *testing.B) {
			for b.Loop() {
				benchScale(b, rankCount)
			}
		})
	}
}

func benchScale(b *testing.B, rankCount int) {
	store, dial := newBenchStore(b)
	g := &benchGroup{b: b, planes: make([]*Plane, rankCount)}
	joinTime := g.runOnEach(func(rank int) error { return g.join(rank, dial()) })
	exchangeTime := g.runOnEach(g.exchange)
	lossTime := g.runOnEach(func(rank int) error {
		if rank == 0 {
			g.disconnectRank0()
			return nil
		}

		return g.noticeLoss(rank)
	})
	_ = g.runOnEach(func(rank int) error { return g.planes[rank].Close() }) // time not reported
	check(b, store.Close())
	peerCount := rankCount - 1
	messageCount := exchangeCount * rankCount * peerCount
	reportMean(b, "join-µs/rank", joinTime, rankCount)
	reportMean(b, "exchange-µs/message", exchangeTime, messageCount)
	reportMean(b, "death-µs/rank", lossTime, rankCount)
}

func reportMean(b *testing.B, metric string, total time.Duration, count int) {
	b.ReportMetric(float64(total.Microseconds())/float64(count), metric)
}

type benchGroup struct {
	b      *testing.B
	planes []*Plane // by rank; set by join
}

// runOnEach calls f concurrently for all ranks and returns the CPU time of all calls.
func (g *benchGroup) runOnEach(f func(rank int) error) time.Duration {
	begin := cpuTime(g.b)
	errs := ranktest.CollectErrors(len(g.planes), f)
	check(g.b, errors.Join(errs...))
	return cpuTime(g.b) - begin
}

func cpuTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}

	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// join joins a rank to the group and closes the client.
func (g *benchGroup) join(rank int, client *rendezvous.Client) error {
	ranks := make([]int, len(g.planes))
	for r := range ranks {
		ranks[r] = r
	}

	p, joinErr := Join(g.b.Context(), Config{
		Store: client, Timeout: hangTimeout, Host: "127.0.0.1",
		Group: driver.GroupConfig{ID: "scale", Ranks: ranks, Rank: rank},
	})
	g.planes[rank] = p
	closeErr := client.Close()
	return errors.Join(joinErr, closeErr)
}

const exchangeCount = 10 // per rank

func (g *benchGroup) exchange(rank int) error {
	const typicalBytes = 142
	payload := make([]byte, typicalBytes)
	for range exchangeCount {
		_, err := g.planes[rank].Exchange(g.b.Context(), driver.LaneControl, payload)
		if err != nil {
			return err
		}
	}

	return nil
}

func (g *benchGroup) disconnectRank0() {
	for _, l := range g.planes[0].links[1:] { // rank 0 has no link to itself
		_ = l.conn.Close()
	}
}

func (g *benchGroup) noticeLoss(rank int) error {
	_, err := g.planes[rank].Exchange(g.b.Context(), driver.LaneControl, nil)
	if err == nil {
		return errors.New("Exchange succeeded although a rank is lost")
	}

	ctx, cancel := context.WithTimeout(g.b.Context(), hangTimeout)
	defer cancel()
	_, err = g.planes[rank].Exchange(ctx, driver.LaneFault, []byte("lost"))
	return err
}

// newBenchStore returns a store and a function that any goroutine can call to connect to it.
func newBenchStore(b *testing.B) (server *rendezvous.Server, dial func() *rendezvous.Client) {
	token := rendezvous.NewToken()
	server, err := rendezvous.Listen("127.0.0.1:0", token)
	check(b, err)
	var mu sync.Mutex // one handshake at a time, because the server limits their number
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
