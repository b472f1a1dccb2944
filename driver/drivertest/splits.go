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
// parts are in random order in the buffers, with gaps.
func newExchange(draw *rand.Rand, n int, limit int64, t driver.DataType) *exchange {
	ex := &exchange{dataType: t}
	for range n {
		row := make([]int64, n)
		for dst := range row {
			if draw.IntN(4) > 0 {
				row[dst] = draw.Int64N(limit + 1)
			}
		}
		ex.counts = append(ex.counts, row)
	}
	for r := range n {
		column := make([]int64, n)
		for src := range column {
			column[src] = ex.counts[src][r]
		}
		ex.sends = append(ex.sends, scatterParts(draw, ex.counts[r]))
		ex.recvs = append(ex.recvs, scatterParts(draw, column))
	}
	return ex
}

func scatterParts(draw *rand.Rand, counts []int64) []int64 {
	offsets, end := make([]int64, len(counts)), int64(0)
	for _, i := range draw.Perm(len(counts)) {
		end += draw.Int64N(2) * 3
		offsets[i] = end
		end += counts[i]
	}
	return offsets
}

func (ex *exchange) splits(rank int) *driver.Splits {
	s := &driver.Splits{
		SendCounts: slices.Clone(ex.counts[rank]), SendOffsets: ex.sends[rank],
		RecvOffsets: ex.recvs[rank],
	}
	for _, row := range ex.counts {
		s.RecvCounts = append(s.RecvCounts, row[rank])
	}
	return s
}

func (ex *exchange) part(h Harness, src, dst int) []byte {
	return input(h, ex.dataType, 100+len(ex.counts)*src+dst, ex.counts[src][dst])
}

func (ex *exchange) call(r *rank, send, recv buffer, windowed bool) driver.Call {
	call := driver.Call{
		Operation: driver.AllToAllV, DataType: ex.dataType, Splits: ex.splits(r.number),
		Send: send.addr(0), Recv: recv.addr(margin), Digest: 5,
	}
	if windowed {
		call.SendWindow = send.window
	}
	return call
}

func (ex *exchange) fill(h Harness, r *rank, send, recv buffer) {
	size := int64(ex.dataType.Size())
	for dst := range ex.counts {
		r.write(send.addr(ex.sends[r.number][dst]*size), ex.part(h, r.number, dst))
	}
	r.must(r.stream.Fill(recv.addr(0), canary, recv.segment.Bytes()))
}

func (ex *exchange) checkResult(h Harness, r *rank, recv buffer) {
	size := int64(ex.dataType.Size())
	want := bytes.Repeat([]byte{canary}, int(recv.segment.Bytes()))
	for src := range ex.counts {
		copy(want[margin+ex.recvs[r.number][src]*size:], ex.part(h, src, r.number))
	}
	r.expect(recv.addr(0), want)
}

func (ex *exchange) perform(fx *fixture, r *rank, windowed bool) {
	send, recv := fx.send[r.number], fx.recv[r.number]
	ex.fill(fx.harness, r, send, recv)
	r.must(r.launch(r.group, r.stream, ex.call(r, send, recv, windowed)))
	ex.checkResult(fx.harness, r, recv)
}

func testSplits(t *testing.T, h Harness) {
	seed := rand.Uint64()
	draw := rand.New(rand.NewPCG(seed, 2))
	for _, n := range []int{1, 2, 3, 4} {
		if n > h.Ranks {
			continue
		}
		fx := newFixture(t, h, n, 4<<20, options{check: true})
		for i, limit := range []int64{0, 1, 40, 5000, 120 << 10} {
			types := []driver.DataType{driver.Uint8, driver.Float16, driver.Int32, driver.Float64}
			ex := newExchange(draw, n, limit, types[(i+n)%len(types)])
			windows := draw.IntN(1 << n)
			if !fx.attempt(func(r *rank) { ex.perform(fx, r, windows>>r.number&1 == 1) }) {
				t.Fatalf("seed %d, %d ranks, %d elements, windows %b", seed, n, limit, windows)
			}
		}
	}
}

func testCapturedSplits(t *testing.T, h Harness) {
	fx := newFixture(t, h, min(3, h.Ranks), 2<<20, options{check: true})
	ex := newExchange(rand.New(rand.NewPCG(4, 4)), len(fx.ranks), 60<<10, driver.Int32)
	fx.each(func(r *rank) {
		send, recv := fx.send[r.number], fx.recv[r.number]
		g := r.capture(func() {
			r.must(r.queue(r.group, r.stream, ex.call(r, send, recv, true)))
		})
		for round := range 3 {
			r.setStep("round %d", round)
			ex.fill(h, r, send, recv)
			r.must(g.Launch(r.stream))
			ex.checkResult(h, r, recv)
		}
	})
}

func testSplitsDiffer(t *testing.T, h Harness) {
	n := mismatchRanks(h)
	fx := newFixture(t, h, n, 1<<20, options{check: true, expectFaults: true})
	ex := newExchange(rand.New(rand.NewPCG(7, 7)), n, 20<<10, driver.Int32)
	expected := uint64(ex.counts[0][1] + 1)
	errs := fx.outcomes(func(r *rank) error {
		send, recv := fx.send[r.number], fx.recv[r.number]
		ex.fill(h, r, send, recv)
		call := ex.call(r, send, recv, r.number == 0)
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
	for number, r := range fx.ranks {
		r.expectAll(fx.recv[number].addr(0), canary, fx.recv[number].segment.Bytes())
	}
}

func testOtherExchange(t *testing.T, h Harness) {
	checkMismatch(t, h, mismatchRanks(h), func(fx *fixture, r *rank) driver.Call {
		tr := trial{operation: driver.AllToAll, dataType: driver.Int32, count: 100}
		call := tr.call(r, fx.send[r.number], fx.recv[r.number])
		if r.number != 1 {
			return call
		}
		ex := newExchange(rand.New(rand.NewPCG(9, 9)), len(fx.ranks), 100, driver.Int32)
		return ex.call(r, fx.send[r.number], fx.recv[r.number], false)
	})
}
