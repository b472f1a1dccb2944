package drivertest

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"symmem/driver"
)

var splitRequirements = []requirement{
	{"AllToAllV writes every part to its offset and nothing else", testSplits},
	{"a captured AllToAllV can be replayed", testCapturedSplits},
	{"inconsistent splits cause the same MessageError on all ranks and no result", testSplitsDiffer},
	{"AllToAll on one rank and AllToAllV on another cause a MismatchError", testDifferentAllToAlls},
}

type splitExchange struct {
	counts                   [][]int64 // by sender and receiver
	sendOffsets, recvOffsets [][]int64 // of parts in the buffers, by rank and peer
	dataType                 driver.DataType
}

// randomExchange returns an AllToAllV in which each rank sends at most maxCount elements to each
// rank. In the buffers, the parts are in random order and have gaps between them.
func randomExchange(random *rand.Rand, n int, maxCount int64, t driver.DataType) *splitExchange {
	ex := &splitExchange{dataType: t}
	for range n {
		row := make([]int64, n)
		for dst := range row {
			if random.IntN(4) > 0 {
				row[dst] = random.Int64N(maxCount + 1)
			}
		}
		ex.counts = append(ex.counts, row)
	}
	for r := range n {
		column := make([]int64, n)
		for src := range column {
			column[src] = ex.counts[src][r]
		}
		ex.sendOffsets = append(ex.sendOffsets, randomOffsets(random, ex.counts[r]))
		ex.recvOffsets = append(ex.recvOffsets, randomOffsets(random, column))
	}
	return ex
}

func randomOffsets(random *rand.Rand, counts []int64) []int64 {
	offsets, end := make([]int64, len(counts)), int64(0)
	for _, i := range random.Perm(len(counts)) {
		end += random.Int64N(2) * 3
		offsets[i] = end
		end += counts[i]
	}
	return offsets
}

func (ex *splitExchange) splits(rank int) *driver.Splits {
	s := &driver.Splits{
		SendCounts: slices.Clone(ex.counts[rank]), SendOffsets: ex.sendOffsets[rank],
		RecvOffsets: ex.recvOffsets[rank],
	}
	for _, row := range ex.counts {
		s.RecvCounts = append(s.RecvCounts, row[rank])
	}
	return s
}

func (ex *splitExchange) inputOfPart(h Harness, src, dst int) []byte {
	return input(h, ex.dataType, 100+len(ex.counts)*src+dst, ex.counts[src][dst])
}

func (ex *splitExchange) call(r *rank, send, recv buffer, useWindow bool) driver.Call {
	call := driver.Call{
		Operation: driver.AllToAllV, DataType: ex.dataType, Splits: ex.splits(r.number),
		Send: send.addressAt(0), Recv: recv.addressAt(canaryCount), Digest: 5,
	}
	if useWindow {
		call.SendWindow = send.window
	}
	return call
}

func (ex *splitExchange) writeBuffers(h Harness, r *rank, send, recv buffer) {
	size := int64(ex.dataType.Size())
	for dst := range ex.counts {
		offset := ex.sendOffsets[r.number][dst] * size
		r.write(send.addressAt(offset), ex.inputOfPart(h, r.number, dst))
	}
	r.must(r.stream.Fill(recv.addressAt(0), canary, recv.segment.Bytes()))
}

func (ex *splitExchange) checkResult(h Harness, r *rank, recv buffer) {
	size := int64(ex.dataType.Size())
	want := bytes.Repeat([]byte{canary}, int(recv.segment.Bytes()))
	for src := range ex.counts {
		offset := canaryCount + ex.recvOffsets[r.number][src]*size
		copy(want[offset:], ex.inputOfPart(h, src, r.number))
	}
	r.expectBytes(recv.addressAt(0), want)
}

func (ex *splitExchange) run(bw *bufferWorld, r *rank, useWindow bool) {
	send, recv := bw.send[r.number], bw.recv[r.number]
	ex.writeBuffers(bw.harness, r, send, recv)
	r.must(r.launchAndWait(r.group, r.stream, ex.call(r, send, recv, useWindow)))
	ex.checkResult(bw.harness, r, recv)
}

func testSplits(t *testing.T, h Harness) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 2))
	for _, n := range []int{1, 2, 3, 4} {
		if n > h.Ranks {
			continue
		}
		bw := newBufferWorld(t, h, n, 4<<20, options{checkCalls: true})
		for i, maxCount := range []int64{0, 1, 40, 5000, 120 << 10} {
			types := []driver.DataType{driver.Uint8, driver.Float16, driver.Int32, driver.Float64}
			ex := randomExchange(random, n, maxCount, types[(i+n)%len(types)])
			windows := random.IntN(1 << n)
			if !bw.tryOnEachRank(func(r *rank) { ex.run(bw, r, windows>>r.number&1 == 1) }) {
				t.Fatalf("seed %d, %d ranks, %d elements, windows %b", seed, n, maxCount, windows)
			}
		}
	}
}

func testCapturedSplits(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, min(3, h.Ranks), 2<<20, options{checkCalls: true})
	ex := randomExchange(rand.New(rand.NewPCG(4, 4)), len(bw.ranks), 60<<10, driver.Int32)
	bw.onEachRank(func(r *rank) {
		send, recv := bw.send[r.number], bw.recv[r.number]
		g := r.capture(func() {
			r.must(r.queueCall(r.group, r.stream, ex.call(r, send, recv, true)))
		})
		for round := range 3 {
			r.setStep("round %d", round)
			ex.writeBuffers(h, r, send, recv)
			r.must(g.Launch(r.stream))
			ex.checkResult(h, r, recv)
		}
	})
}

func testSplitsDiffer(t *testing.T, h Harness) {
	n := mismatchRankCount(h)
	bw := newBufferWorld(t, h, n, 1<<20, options{checkCalls: true, allowFaults: true})
	ex := randomExchange(rand.New(rand.NewPCG(7, 7)), n, 20<<10, driver.Int32)
	expected := uint64(ex.counts[0][1] + 1)
	errs := bw.errorsByRank(func(r *rank) error {
		send, recv := bw.send[r.number], bw.recv[r.number]
		ex.writeBuffers(h, r, send, recv)
		call := ex.call(r, send, recv, r.number == 0)
		if r.number == 1 {
			call.Splits.RecvCounts[0]++
		}
		return r.launchAndWait(r.group, r.stream, call)
	})
	for _, err := range errs {
		checkMessageEnds(t, err, driver.SplitsDiffer, driver.MessageEnds{
			From: 0, To: 1, Sent: expected - 1, Received: expected,
		})
	}
	for number, r := range bw.ranks {
		r.expectFilled(bw.recv[number].addressAt(0), canary, bw.recv[number].segment.Bytes())
	}
}

func testDifferentAllToAlls(t *testing.T, h Harness) {
	checkMismatch(t, h, mismatchRankCount(h), func(bw *bufferWorld, r *rank) driver.Call {
		tr := trial{operation: driver.AllToAll, dataType: driver.Int32, count: 100}
		call := tr.call(r, bw.send[r.number], bw.recv[r.number])
		if r.number != 1 {
			return call
		}
		ex := randomExchange(rand.New(rand.NewPCG(9, 9)), len(bw.ranks), 100, driver.Int32)
		return ex.call(r, bw.send[r.number], bw.recv[r.number], false)
	})
}
