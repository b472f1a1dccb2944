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
	// Sizes of messages on the host backend and on GPUs. They are large enough that speed matters
	// more than latency.
	hostMessageBytes = 1 << 20
	gpuMessageBytes  = 4 << 20
	// messagesPerDirection is the number of messages that a measurement sends in each direction. It
	// reports their mean speed, so that a process that is sometimes stopped appears slow.
	messagesPerDirection = 32
	// maxMeasurements is the maximum number of measurements of a link. Only slow links, and the
	// fast links with which they are compared, are measured again. The best measurement counts,
	// because other programs may disturb some measurements.
	maxMeasurements = 3
)

// slowRank is the number of a rank whose links a test makes slow, or "". The test sets it with
// -ldflags=-X. After each exchange of messages, the rank pauses for slowRankPause times as long as
// the exchange took.
var slowRank string

const slowRankPause = 10

// MeasureLinks measures the link between each pair of ranks. It returns the links from this rank to
// ranks with higher numbers. All ranks must call it. memory must have at least 8 MiB.
//
// tolerance is a fraction, such as 0.5. MeasureLinks repeats the measurement of links that are
// slower than tolerance times the speed of fast links.
func MeasureLinks(
	ctx context.Context, rt *symmem.Runtime, g *workload.Gatherer, memory symmem.Memory,
	tolerance float64,
) ([]Link, error) {
	l, err := newLinkMeasurement(ctx, rt, memory)
	if err != nil {
		return nil, err
	}

	node, err := nodeName()
	if err != nil {
		return nil, err
	}

	nodes, err := workload.Gather(ctx, g, node) // by rank
	if err != nil {
		return nil, err
	}

	pairs := pairsByRound(rt.Size()) // to measure next
	for count := 1; len(pairs) > 0; count++ {
		for _, p := range pairs {
			if err := l.measure(p); err != nil {
				return nil, err
			}
		}

		if count == maxMeasurements {
			break
		}

		linksByRank, err := workload.Gather(ctx, g, l.results)
		if err != nil {
			return nil, err
		}

		pairs = pairsToRepeat(linksByRank, nodes, tolerance) // the same on all ranks
	}

	return l.results, nil
}

// pair holds the numbers of two ranks in ascending order.
type pair struct{ low, high int }

// pairsByRound lists all pairs of ranks, ordered by round as in a round-robin tournament. Each rank
// belongs to at most one pair of a round, so the pairs of a round can exchange messages at the same
// time.
func pairsByRound(ranks int) []pair {
	var pairs []pair
	evenRanks := ranks + ranks%2 // with an odd number, a rank pauses in each round
	rounds := evenRanks - 1
	// In round r, rank r and the last rank are a pair. The other ranks form a circle, in which the
	// two ranks at the same distance from r are a pair.
	for round := range rounds {
		for distance := range evenRanks / 2 {
			first := (round + distance) % rounds
			second := (round - distance + rounds) % rounds
			if distance == 0 {
				second = evenRanks - 1
			}

			if first < ranks && second < ranks { // otherwise, the other rank pauses
				pairs = append(pairs, pair{low: min(first, second), high: max(first, second)})
			}
		}
	}

	return pairs
}

// pairsToRepeat returns the pairs with slow links, and the pairs with the fast links with which the
// slow links were compared. nodes holds the name of each rank's machine.
func pairsToRepeat(linksByRank [][]Link, nodes []string, tolerance float64) []pair {
	var pairs []pair
	nodeOf := func(rank int) string { return nodes[rank] }
	for _, slow := range slowLinks(slices.Concat(linksByRank...), nodeOf, tolerance) {
		slowPair := pair{low: slow.From, high: slow.To}
		fastPair := pair{low: slow.fast.From, high: slow.fast.To}
		for _, p := range []pair{slowPair, fastPair} {
			if !slices.Contains(pairs, p) {
				pairs = append(pairs, p)
			}
		}
	}

	return pairs
}

// linkMeasurement measures the links of this rank.
type linkMeasurement struct {
	ctx        context.Context
	rt         *symmem.Runtime
	bytes      int64         // size of a message
	send, recv symmem.Memory // one message each
	results    []Link        // links from this rank to ranks with higher numbers
}

// newLinkMeasurement returns a linkMeasurement that uses the given memory for messages.
func newLinkMeasurement(
	ctx context.Context, rt *symmem.Runtime, memory symmem.Memory,
) (*linkMeasurement, error) {
	bytes := int64(gpuMessageBytes)
	if rt.Device().Addressable { // the host backend
		bytes = hostMessageBytes
	}

	const sendOffset = 0
	send, err := memory.Slice(sendOffset, bytes)
	if err != nil {
		return nil, err
	}

	recvOffset := bytes
	recv, err := memory.Slice(recvOffset, bytes)
	if err != nil {
		return nil, err
	}

	return &linkMeasurement{ctx: ctx, rt: rt, bytes: bytes, send: send, recv: recv}, nil
}

// measure measures the link of a pair and checks the messages, if this rank belongs to the pair.
// The rank with the lower number adds the result to l.results. On the other rank, wrong bytes are
// an error.
func (l *linkMeasurement) measure(p pair) error {
	rank := l.rt.Rank()
	if rank != p.low && rank != p.high {
		return nil
	}

	peer := p.low
	if rank == p.low {
		peer = p.high
	}

	wrongBytes, err := l.countWrongBytes(rank, peer)
	if err != nil {
		return fmt.Errorf("link between ranks %d and %d: %w", p.low, p.high, err)
	}

	start := time.Now()
	for range messagesPerDirection {
		exchangeStart := time.Now()
		if err := l.exchangeMessages(rank, peer); err != nil {
			return fmt.Errorf("link between ranks %d and %d: %w", p.low, p.high, err)
		}

		if slowRank == strconv.Itoa(rank) {
			l.pause(slowRankPause * time.Since(exchangeStart))
		}
	}

	bothDirections := float64(2 * messagesPerDirection * l.bytes)
	speed := bothDirections / time.Since(start).Seconds()
	if rank == p.low {
		l.addResult(Link{From: p.low, To: p.high, BytesPerSecond: speed, WrongBytes: wrongBytes})
		return nil
	}

	if wrongBytes > 0 {
		return fmt.Errorf("rank %d received %d wrong bytes from rank %d", rank, wrongBytes, peer)
	}

	return nil
}

// pause waits for a duration or until the context ends.
func (l *linkMeasurement) pause(duration time.Duration) {
	select {
	case <-time.After(duration):
	case <-l.ctx.Done():
	}
}

// addResult adds a result. If the link has been measured before, addResult combines the results: it
// keeps the best speed, and the sum of the wrong bytes.
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
func (l *linkMeasurement) countWrongBytes(rank, peer int) (int64, error) {
	stream := l.rt.DefaultStream()
	sent := messageContents(rank, peer, l.bytes)
	if err := stream.Copy(l.send, symmem.Host(sent)); err != nil {
		return 0, err
	}

	if err := stream.Fill(l.recv, workload.Junk); err != nil {
		return 0, err
	}

	if err := l.exchangeMessages(rank, peer); err != nil {
		return 0, err
	}

	got := make([]byte, l.bytes)
	if err := stream.Copy(symmem.Host(got), l.recv); err != nil {
		return 0, err
	}

	if err := stream.Synchronize(l.ctx); err != nil {
		return 0, err
	}

	want := messageContents(peer, rank, l.bytes)
	if bytes.Equal(got, want) { // faster than the loop
		return 0, nil
	}

	wrongBytes := int64(0)
	for i := range got {
		if got[i] != want[i] {
			wrongBytes++
		}
	}

	return wrongBytes, nil
}

// messageContents returns pseudorandom bytes. They depend on the sender and the receiver, so that a
// message of another pair is noticed.
func messageContents(src, dst int, size int64) []byte {
	contents := make([]byte, size)
	// The constants of the seed are arbitrary. The loop is a linear congruential generator.
	random := uint32(src)*0x9e3779b1 + uint32(dst)*0x85ebca6b + 1
	for i := range contents {
		random = random*1664525 + 1013904223
		contents[i] = byte(random >> 24) // the high bits are the most random
	}

	return contents
}

// exchangeMessages sends a message to a peer, receives one, and waits until both have completed.
// The rank with the lower number sends first.
func (l *linkMeasurement) exchangeMessages(rank, peer int) error {
	world := l.rt.World()
	stream := l.rt.DefaultStream()
	send := func() error { return world.Send(l.ctx, l.send, l.bytes, symmem.Uint8, peer, stream) }
	recv := func() error { return world.Recv(l.ctx, l.recv, l.bytes, symmem.Uint8, peer, stream) }
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

	return stream.Synchronize(l.ctx)
}

// nodeName returns the name of this machine.
func nodeName() (string, error) {
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("finding the name of this machine: %w", err)
	}

	return name, nil
}
