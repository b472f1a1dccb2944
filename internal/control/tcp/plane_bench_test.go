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

// BenchmarkScale shows how the cost of a group grows with the number of its ranks. All ranks run in
// this process and connect over the loopback interface. A group of 16 ranks goes through three
// phases, of which the benchmark measures the CPU time:
//
//   - join: all ranks join the group.
//   - exchange: each rank sends 10 messages to each of the 15 others.
//   - death: rank 0 closes its connections. All others notice that it is lost, and exchange
//     reports.
//
// The metrics are the CPU time of join and death per rank, and that of exchange per message.
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

// benchScale runs the phases once and reports the metrics.
func benchScale(b *testing.B, rankCount int) {
	store, dial := newBenchStore(b)
	g := &benchGroup{b: b, planes: make([]*Plane, rankCount)}
	joinTime := g.runOnEach(func(rank int) error { return g.join(rank, dial()) })
	exchangeTime := g.runOnEach(g.exchange)
	deathTime := g.runOnEach(func(rank int) error {
		if rank == 0 {
			g.loseRank0()
			return nil
		}

		return g.noticeLoss(rank)
	})
	g.runOnEach(func(rank int) error { return g.planes[rank].Close() })
	check(b, store.Close())
	messageCount := exchangeCount * rankCount * (rankCount - 1) // each rank sends to all others
	reportTime := func(metric string, d time.Duration, count int) {
		b.ReportMetric(float64(d.Microseconds())/float64(count), metric)
	}
	reportTime("join-µs/rank", joinTime, rankCount)
	reportTime("exchange-µs/message", exchangeTime, messageCount)
	reportTime("death-µs/rank", deathTime, rankCount)
}

// benchGroup is a group of ranks in this process.
type benchGroup struct {
	b      *testing.B
	planes []*Plane // by rank; set by join
}

// runOnEach calls f for all ranks at the same time and returns the CPU time of these calls. An
// error of a rank fails the benchmark.
func (g *benchGroup) runOnEach(f func(rank int) error) time.Duration {
	begin := cpuTime(g.b)
	errs := ranktest.CollectErrors(len(g.planes), f)
	check(g.b, errors.Join(errs...))
	return cpuTime(g.b) - begin
}

// cpuTime returns the CPU time that this process has used.
func cpuTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}

	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// join joins the group as a rank. It closes the client of the store.
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

// exchangeCount is the number of exchanges in the second phase.
const exchangeCount = 10

// exchange takes part in the exchanges of the second phase.
func (g *benchGroup) exchange(rank int) error {
	payload := make([]byte, 142) // as large as the message of an agreement
	for range exchangeCount {
		_, err := g.planes[rank].Exchange(g.b.Context(), driver.LaneControl, payload)
		if err != nil {
			return err
		}
	}

	return nil
}

// loseRank0 closes the connections of rank 0, so that the other ranks lose it.
func (g *benchGroup) loseRank0() {
	for _, l := range g.planes[0].links[1:] {
		_ = l.conn.Close()
	}
}

// noticeLoss waits until a rank has noticed that rank 0 is lost, and exchanges a report with the
// other ranks.
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

// newBenchStore starts the server of a store, through which ranks find each other. dial returns a
// new client of the store, and panics if it cannot connect.
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
