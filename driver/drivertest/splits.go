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

// splitExchange is an AllToAllV: each rank sends a part of a different size to each rank.
type splitExchange struct {
	counts                   [][]int64 // number of elements of each part, by sender and receiver
	sendOffsets, recvOffsets [][]int64 // of parts in the buffers, in elements, by rank and peer
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

// randomOffsets returns offsets of parts with the given counts. The parts are in random order, with
// gaps before some of them.
func randomOffsets(random *rand.Rand, counts []int64) []int64 {
	const gap = 3
	offsets := make([]int64, len(counts))
	end := int64(0) // of the parts so far
	for _, i := range random.Perm(len(counts)) {
		end += random.Int64N(2) * gap
		offsets[i] = end
		end += counts[i]
	}

	return offsets
}

// splits returns a rank's argument. The caller may change the counts, which are copies.
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

// inputOfPart returns the data that rank src sends to rank dst.
func (ex *splitExchange) inputOfPart(h Harness, src, dst int) []byte {
	seed := 100 + len(ex.counts)*src + dst // differs between parts
	return input(h, ex.dataType, seed, ex.counts[src][dst])
}

// call returns a rank's call. If useWindow is set, the other ranks may read the send buffer in its
// window.
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

// writeBuffers writes the parts that rank r sends, and fills the receive buffer with canaries.
func (ex *splitExchange) writeBuffers(h Harness, r *rank, send, recv buffer) {
	size := int64(ex.dataType.Size())
	for dst := range ex.counts {
		offset := ex.sendOffsets[r.number][dst] * size
		r.write(send.addressAt(offset), ex.inputOfPart(h, r.number, dst))
	}

	r.must(r.stream.Fill(recv.addressAt(0), canary, recv.segment.Bytes()))
}

// checkResult checks the whole receive buffer, with the gaps between parts.
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
	types := []driver.DataType{driver.Uint8, driver.Float16, driver.Int32, driver.Float64}
	for n := 1; n <= min(4, h.Ranks); n++ {
		bw := newBufferWorld(t, h, n, 4<<20, options{checkCalls: true})
		for i, maxCount := range []int64{0, 1, 40, 5000, 120 << 10} {
			ex := randomExchange(random, n, maxCount, types[(i+n)%len(types)])
			windows := random.IntN(1 << n) // one bit for each rank, 1 if the rank uses its window
			succeeded := bw.tryOnEachRank(func(r *rank) {
				useWindow := windows>>r.number&1 == 1
				ex.run(bw, r, useWindow)
			})
			if !succeeded {
				t.Fatalf("seed %d, %d ranks, %d elements, windows %b", seed, n, maxCount, windows)
			}
		}
	}
}

func testCapturedSplits(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, min(3, h.Ranks), 2<<20, options{checkCalls: true})
	ex := randomExchange(rand.New(rand.NewPCG(4, 4)), len(bw.ranks), 60<<10, driver.Int32)
	const useWindow = true
	bw.onEachRank(func(r *rank) {
		send, recv := bw.send[r.number], bw.recv[r.number]
		call := ex.call(r, send, recv, useWindow)
		g := r.capture(func() { r.must(r.queueCall(r.group, r.stream, call)) })
		for round := range 3 {
			r.setStep("round %d", round)
			ex.writeBuffers(h, r, send, recv)
			r.must(g.Launch(r.stream))
			ex.checkResult(h, r, recv) // waits for the launch
		}
	})
}

// testSplitsDiffer makes rank 1 expect one element more from rank 0 than rank 0 sends.
func testSplitsDiffer(t *testing.T, h Harness) {
	n := mismatchRankCount(h)
	bw := newBufferWorld(t, h, n, 1<<20, options{checkCalls: true, allowFaults: true})
	ex := randomExchange(rand.New(rand.NewPCG(7, 7)), n, 20<<10, driver.Int32)
	sent := uint64(ex.counts[0][1])
	errs := bw.errorsByRank(func(r *rank) error {
		send, recv := bw.send[r.number], bw.recv[r.number]
		ex.writeBuffers(h, r, send, recv)
		useWindow := r.number == 0
		call := ex.call(r, send, recv, useWindow)
		if r.number == 1 {
			call.Splits.RecvCounts[0]++
		}

		return r.launchAndWait(r.group, r.stream, call)
	})
	for _, err := range errs {
		checkMessageEnds(t, err, driver.SplitsDiffer, driver.MessageEnds{
			From: 0, To: 1, Sent: sent, Received: sent + 1,
		})
	}

	for number, r := range bw.ranks {
		recv := bw.recv[number]
		r.expectFilled(recv.addressAt(0), canary, recv.segment.Bytes())
	}
}

// testDifferentAllToAlls makes rank 1 call AllToAllV, and the other ranks AllToAll.
func testDifferentAllToAlls(t *testing.T, h Harness) {
	checkMismatch(t, h, mismatchRankCount(h), func(bw *bufferWorld, r *rank) driver.Call {
		const count = 100
		send, recv := bw.send[r.number], bw.recv[r.number]
		if r.number == 1 {
			const useWindow = false
			ex := randomExchange(rand.New(rand.NewPCG(9, 9)), len(bw.ranks), count, driver.Int32)
			return ex.call(r, send, recv, useWindow)
		}

		tr := trial{operation: driver.AllToAll, dataType: driver.Int32, count: count}
		return tr.call(r, send, recv)
	})
}
