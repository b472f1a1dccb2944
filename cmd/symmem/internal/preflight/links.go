package preflight

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

const (
	// hostMessageBytes and gpuMessageBytes are the sizes of messages on the host backend and on
	// GPUs. They are large enough that speed matters more than latency.
	hostMessageBytes, gpuMessageBytes = 1 << 20, 4 << 20
	// messagesPerDirection is the number of messages that a measurement sends in each direction. It
	// reports their mean speed, so that a process that is sometimes stopped appears slow.
	messagesPerDirection = 32
	// maxMeasurements is the number of measurements of a slow link, and of the fast link with which
	// the slow link is compared. The best one counts, because other programs may disturb others.
	maxMeasurements = 3
)

// slowRank is the number of a rank whose links a test makes slow, or "". The test sets it with
// -ldflags=-X. After each exchange of messages, the rank pauses for slowRankPause times as long as
// the exchange took.
var slowRank string

const slowRankPause = 10

// MeasureLinks measures the link between each pair of ranks. It repeats the measurement of links
// slower than tolerance (a fraction) times the speed of fast links. All ranks must call it. It
// returns the links to ranks with higher numbers. memory must have at least 8 MiB.
func MeasureLinks(
	ctx context.Context, rt *symmem.Runtime, g *workload.Gatherer, memory symmem.Memory,
	tolerance float64,
) ([]Link, error) {
	l := &linkMeasurement{rt: rt, ctx: ctx, bytes: gpuMessageBytes}
	if rt.Device().Addressable {
		l.bytes = hostMessageBytes
	}
	var err error
	if l.send, err = memory.Slice(0, l.bytes); err != nil {
		return nil, err
	}
	if l.recv, err = memory.Slice(l.bytes, l.bytes); err != nil {
		return nil, err
	}
	node, err := nodeName()
	if err != nil {
		return nil, err
	}
	nodes, err := workload.Gather(ctx, g, node)
	if err != nil {
		return nil, err
	}
	for measurement := range maxMeasurements {
		pairs := pairsByRound(rt.Size())
		if measurement > 0 {
			all, err := workload.Gather(ctx, g, l.results)
			if err != nil {
				return nil, err
			}
			pairs = pairsToRepeat(all, nodes, tolerance)
			if len(pairs) == 0 {
				break
			}
		}
		for _, p := range pairs {
			if err := l.measure(p); err != nil {
				return nil, err
			}
		}
	}
	return l.results, nil
}

// pair holds the numbers of two ranks in ascending order.
type pair [2]int

// pairsByRound lists all pairs of ranks, ordered by round as in a round-robin tournament: each
// rank belongs to at most one pair of a round, so the pairs can exchange messages at the same
// time.
func pairsByRound(ranks int) (pairs []pair) {
	evenRanks := ranks + ranks%2 // if ranks is odd, one rank belongs to no pair of a round
	rounds := evenRanks - 1
	for round := range rounds {
		for i := range evenRanks / 2 {
			first, second := (round+i)%rounds, (round-i+rounds)%rounds
			if i == 0 {
				second = evenRanks - 1
			}
			if first < ranks && second < ranks {
				pairs = append(pairs, pair{min(first, second), max(first, second)})
			}
		}
	}
	return pairs
}

// pairsToRepeat returns the pairs with slow links and the pairs with the fast links that these
// were compared with. nodes holds the name of each rank's machine.
func pairsToRepeat(all [][]Link, nodes []string, tolerance float64) (pairs []pair) {
	links := slices.Concat(all...)
	for _, l := range slowLinks(links, func(rank int) string { return nodes[rank] }, tolerance) {
		for _, p := range []pair{{l.From, l.To}, {l.fast.From, l.fast.To}} {
			if !slices.Contains(pairs, p) {
				pairs = append(pairs, p)
			}
		}
	}
	return pairs
}

type linkMeasurement struct {
	ctx        context.Context
	rt         *symmem.Runtime
	bytes      int64         // size of a message
	send, recv symmem.Memory // one message each
	results    []Link        // links from this rank to ranks with higher numbers
}

// measure measures the link of a pair, if this rank belongs to the pair.
func (l *linkMeasurement) measure(p pair) error {
	rank := l.rt.Rank()
	if rank != p[0] && rank != p[1] {
		return nil
	}
	peer := p[0] + p[1] - rank // the other rank of the pair
	wrongBytes, err := l.countWrongBytes(rank, peer)
	if err != nil {
		return fmt.Errorf("link between ranks %d and %d: %w", p[0], p[1], err)
	}
	start := time.Now()
	for range messagesPerDirection {
		exchangeStart := time.Now()
		if err := l.exchangeMessages(rank, peer); err != nil {
			return fmt.Errorf("link between ranks %d and %d: %w", p[0], p[1], err)
		}
		if slowRank == strconv.Itoa(rank) {
			select {
			case <-time.After(slowRankPause * time.Since(exchangeStart)):
			case <-l.ctx.Done():
			}
		}
	}
	speed := float64(2*messagesPerDirection*l.bytes) / time.Since(start).Seconds()
	if rank == p[0] {
		l.addResult(Link{From: p[0], To: p[1], BytesPerSecond: speed, WrongBytes: wrongBytes})
	} else if wrongBytes > 0 {
		return fmt.Errorf("rank %d received %d wrong bytes from rank %d", rank, wrongBytes, peer)
	}
	return nil
}

// addResult adds a result, or combines it with the result of an earlier measurement.
func (l *linkMeasurement) addResult(result Link) {
	for i := range l.results {
		earlier := &l.results[i]
		if earlier.From == result.From && earlier.To == result.To {
			earlier.BytesPerSecond = max(earlier.BytesPerSecond, result.BytesPerSecond)
			earlier.WrongBytes += result.WrongBytes
			return
		}
	}
	l.results = append(l.results, result)
}

// countWrongBytes exchanges a message with a peer, and returns the number of wrong bytes that this
// rank received. The exchange is not timed, because the first one on a link is slower than others.
func (l *linkMeasurement) countWrongBytes(rank, peer int) (wrongBytes int64, err error) {
	s := l.rt.DefaultStream()
	if err := s.Copy(l.send, symmem.Host(messageContents(rank, peer, l.bytes))); err != nil {
		return 0, err
	}
	if err := s.Fill(l.recv, workload.Junk); err != nil {
		return 0, err
	}
	if err := l.exchangeMessages(rank, peer); err != nil {
		return 0, err
	}
	got := make([]byte, l.bytes)
	if err := s.Copy(symmem.Host(got), l.recv); err != nil {
		return 0, err
	}
	if err := s.Synchronize(l.ctx); err != nil {
		return 0, err
	}
	want := messageContents(peer, rank, l.bytes)
	if bytes.Equal(got, want) {
		return 0, nil
	}
	for i := range got {
		if got[i] != want[i] {
			wrongBytes++
		}
	}
	return wrongBytes, nil
}

// messageContents returns pseudorandom bytes, which differ between pairs of sender and receiver.
func messageContents(src, dst int, size int64) []byte {
	b := make([]byte, size)
	random := uint32(src)*0x9e3779b1 + uint32(dst)*0x85ebca6b + 1
	for i := range b {
		random = random*1664525 + 1013904223
		b[i] = byte(random >> 24)
	}
	return b
}

// exchangeMessages sends a message to a peer, receives one, and waits until both have completed.
// The rank with the lower number sends first.
func (l *linkMeasurement) exchangeMessages(rank, peer int) error {
	world := l.rt.World()
	send := func() error { return world.Send(l.ctx, l.send, l.bytes, symmem.Uint8, peer, nil) }
	recv := func() error { return world.Recv(l.ctx, l.recv, l.bytes, symmem.Uint8, peer, nil) }
	first, second := send, recv
	if rank > peer {
		first, second = recv, send
	}
	if err := first(); err != nil {
		return err
	}
	if err := second(); err != nil {
		return err
	}
	return l.rt.DefaultStream().Synchronize(l.ctx)
}

func nodeName() (string, error) {
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("finding the name of this machine: %w", err)
	}
	return name, nil
}
