package drivertest

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"symmem/driver"
)

var splitClauses = []clause{
	{"AllToAllV writes every part to its offset and nothing else", testSplits},
	{"a captured AllToAllV can be replayed", testCapturedSplits},
	{"inconsistent splits cause the same MessageError on all ranks and no result", testSplitsDiffer},
	{"AllToAll on one rank and AllToAllV on another cause a MismatchError", testOtherExchange},
}

type exchange struct {
	counts       [][]int64 // numbers of elements by sender and receiver
	sends, recvs [][]int64 // offsets of the parts in the ranks' buffers, by rank and peer
	dataType     driver.DataType
}

// newExchange draws an exchange in which each rank sends at most limit elements to each rank. The
// parts are in random order in the buffers, with gaps between them.
func newExchange(draw *rand.Rand, n int, limit int64, t driver.DataType) *exchange {
	x := &exchange{dataType: t}
	for range n {
		row := make([]int64, n)
		for dst := range row {
			if draw.IntN(4) > 0 {
				row[dst] = draw.Int64N(limit + 1)
			}
		}
		x.counts = append(x.counts, row)
	}
	for r := range n {
		column := make([]int64, n)
		for src := range column {
			column[src] = x.counts[src][r]
		}
		x.sends = append(x.sends, scatterParts(draw, x.counts[r]))
		x.recvs = append(x.recvs, scatterParts(draw, column))
	}
	return x
}

// scatterParts returns the offsets of parts in random order, with gaps of 0 or 3 elements.
func scatterParts(draw *rand.Rand, counts []int64) []int64 {
	offsets, end := make([]int64, len(counts)), int64(0)
	for _, i := range draw.Perm(len(counts)) {
		end += draw.Int64N(2) * 3
		offsets[i] = end
		end += counts[i]
	}
	return offsets
}

func (x *exchange) splits(rank int) *driver.Splits {
	s := &driver.Splits{
		SendCounts: slices.Clone(x.counts[rank]), SendOffsets: x.sends[rank],
		RecvOffsets: x.recvs[rank],
	}
	for _, row := range x.counts {
		s.RecvCounts = append(s.RecvCounts, row[rank])
	}
	return s
}

func (x *exchange) part(h Harness, src, dst int) []byte {
	return input(h, x.dataType, 100+len(x.counts)*src+dst, x.counts[src][dst])
}

// call returns one rank's call. If windowed is set, the call names the send buffer's window.
func (x *exchange) call(r *rank, send, recv buffer, windowed bool) driver.Call {
	call := driver.Call{
		Operation: driver.AllToAllV, DataType: x.dataType, Splits: x.splits(r.number),
		Send: send.addr(0), Recv: recv.addr(margin), Digest: 5,
	}
	if windowed {
		call.SendWindow = send.window
	}
	return call
}

// fill writes a rank's data to its send buffer and canaries to its receive buffer.
func (x *exchange) fill(h Harness, r *rank, send, recv buffer) {
	size := int64(x.dataType.Size())
	for dst := range x.counts {
		r.write(send.addr(x.sends[r.number][dst]*size), x.part(h, r.number, dst))
	}
	r.ok(r.stream.Fill(recv.addr(0), canary, recv.segment.Bytes()))
}

func (x *exchange) checkResult(h Harness, r *rank, recv buffer) {
	size := int64(x.dataType.Size())
	want := bytes.Repeat([]byte{canary}, int(recv.segment.Bytes()))
	for src := range x.counts {
		copy(want[margin+x.recvs[r.number][src]*size:], x.part(h, src, r.number))
	}
	r.expect(recv.addr(0), want)
}

func (x *exchange) perform(b *fixture, r *rank, windowed bool) {
	send, recv := b.send[r.number], b.recv[r.number]
	x.fill(b.harness, r, send, recv)
	r.ok(r.launch(r.group, r.stream, x.call(r, send, recv, windowed)))
	x.checkResult(b.harness, r, recv)
}

func testSplits(t *testing.T, h Harness) {
	seed := rand.Uint64()
	draw := rand.New(rand.NewPCG(seed, 2))
	for _, n := range []int{1, 2, 3, 4} {
		if n > h.Ranks {
			continue
		}
		b := newFixture(t, h, n, 4<<20, options{check: true})
		for i, limit := range []int64{0, 1, 40, 5000, 120 << 10} {
			types := []driver.DataType{driver.Uint8, driver.Float16, driver.Int32, driver.Float64}
			x := newExchange(draw, n, limit, types[(i+n)%len(types)])
			windows := draw.IntN(1 << n)
			if !b.attempt(func(r *rank) { x.perform(b, r, windows>>r.number&1 == 1) }) {
				t.Fatalf("seed %d, %d ranks, %d elements, windows %b", seed, n, limit, windows)
			}
		}
	}
}

func testCapturedSplits(t *testing.T, h Harness) {
	b := newFixture(t, h, min(3, h.Ranks), 2<<20, options{check: true})
	x := newExchange(rand.New(rand.NewPCG(4, 4)), len(b.ranks), 60<<10, driver.Int32)
	b.each(func(r *rank) {
		send, recv := b.send[r.number], b.recv[r.number]
		g := r.capture(func() {
			r.ok(r.queue(r.group, r.stream, x.call(r, send, recv, true)))
		})
		for round := range 3 {
			r.setStep("round %d", round)
			x.fill(h, r, send, recv)
			r.ok(g.Launch(r.stream))
			x.checkResult(h, r, recv)
		}
	})
}

func testSplitsDiffer(t *testing.T, h Harness) {
	n := mismatchRanks(h)
	b := newFixture(t, h, n, 1<<20, options{check: true, expectFaults: true})
	x := newExchange(rand.New(rand.NewPCG(7, 7)), n, 20<<10, driver.Int32)
	expected := uint64(x.counts[0][1] + 1)
	errs := b.outcomes(func(r *rank) error {
		send, recv := b.send[r.number], b.recv[r.number]
		x.fill(h, r, send, recv)
		call := x.call(r, send, recv, r.number == 0)
		if r.number == 1 {
			call.Splits.RecvCounts[0]++
		}
		return r.launch(r.group, r.stream, call)
	})
	for _, err := range errs {
		wantEnds(t, err, driver.SplitsDiffer, driver.MessageEnds{
			From: 0, To: 1, Sent: expected - 1, Received: expected,
		})
	}
	for number, r := range b.ranks {
		r.expectAll(b.recv[number].addr(0), canary, b.recv[number].segment.Bytes())
	}
}

func testOtherExchange(t *testing.T, h Harness) {
	checkMismatch(t, h, mismatchRanks(h), func(b *fixture, r *rank) driver.Call {
		c := trial{operation: driver.AllToAll, dataType: driver.Int32, count: 100}
		call := c.call(r, b.send[r.number], b.recv[r.number])
		if r.number != 1 {
			return call
		}
		x := newExchange(rand.New(rand.NewPCG(9, 9)), len(b.ranks), 100, driver.Int32)
		return x.call(r, b.send[r.number], b.recv[r.number], false)
	})
}
