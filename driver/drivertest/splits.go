package drivertest

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"symmem/driver"
)

// In an AllToAllV, each rank sends a part of its send buffer to each rank, also to itself. The
// sizes of the parts can differ: for example, rank 0 sends 5 elements to rank 0 and 2 elements to
// rank 1. Rank 1 sends 3 elements to rank 0 and none to rank 1. So the receive buffer of rank 0 has
// a part of 5 and one of 3 elements. Counts and offsets of the parts, together called splits, are
// arguments of the call.
//
// The parts are in any order in the buffers, and can have gaps between them. The tests fill receive
// buffers with canaries first, a fixed byte. Afterwards, the gaps must still have it.

var splitRequirements = []requirement{
	{"AllToAllV writes every part to its offset and nothing else", testSplits},
	{"a captured AllToAllV can be replayed", testCapturedSplits},
	{"inconsistent splits cause the same MessageError on all ranks and no result", testSplitsDiffer},
	{"AllToAll on one rank and AllToAllV on another cause a MismatchError", testDifferentAllToAlls},
}

// splitExchange is an AllToAllV.
type splitExchange struct {
	counts      [][]int64 // number of elements of each part, by sender and receiver
	sendOffsets [][]int64 // of the parts in the send buffers, in elements, by sender and receiver
	recvOffsets [][]int64 // of the parts in the receive buffers, in elements, by receiver and sender
	dataType    driver.DataType
}

// randomExchange returns an AllToAllV of n ranks. A part has at most maxCount elements. The parts
// are in random order, with gaps between some of them.
func randomExchange(random *rand.Rand, n int, maxCount int64, t driver.DataType) *splitExchange {
	ex := &splitExchange{dataType: t}
	for range n {
		sendCounts := make([]int64, n) // of one sender
		for dst := range sendCounts {
			isEmpty := random.IntN(4) == 0
			if !isEmpty {
				sendCounts[dst] = random.Int64N(maxCount + 1)
			}
		}

		ex.counts = append(ex.counts, sendCounts)
	}

	for r := range n {
		ex.sendOffsets = append(ex.sendOffsets, randomOffsets(random, ex.counts[r]))
		ex.recvOffsets = append(ex.recvOffsets, randomOffsets(random, ex.recvCounts(r)))
	}

	return ex
}

// recvCounts returns the counts of the parts that a rank receives, by sender.
func (ex *splitExchange) recvCounts(rank int) (counts []int64) {
	for _, sendCounts := range ex.counts {
		counts = append(counts, sendCounts[rank])
	}

	return counts
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

// splits returns the splits of a rank. The caller may change the counts, which are copies.
func (ex *splitExchange) splits(rank int) *driver.Splits {
	return &driver.Splits{
		SendCounts: slices.Clone(ex.counts[rank]), SendOffsets: ex.sendOffsets[rank],
		RecvCounts: ex.recvCounts(rank), RecvOffsets: ex.recvOffsets[rank],
	}
}

// inputOfPart returns the data that rank src sends to rank dst.
func (ex *splitExchange) inputOfPart(h Harness, src, dst int) []byte {
	seed := 100 + len(ex.counts)*src + dst // differs between parts
	return input(h, ex.dataType, seed, ex.counts[src][dst])
}

// call returns a rank's call. In the receive buffer, it leaves room for canaries before the parts.
// If useWindow is set, the other ranks may read the send buffer, because it is in a window.
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

// checkResult checks the whole receive buffer: the parts, and the canaries around them.
func (ex *splitExchange) checkResult(h Harness, r *rank, recv buffer) {
	size := int64(ex.dataType.Size())
	want := bytes.Repeat([]byte{canary}, int(recv.segment.Bytes()))
	for src := range ex.counts {
		offset := canaryCount + ex.recvOffsets[r.number][src]*size
		copy(want[offset:], ex.inputOfPart(h, src, r.number))
	}

	r.expectBytes(recv.addressAt(0), want)
}

// run makes a rank's call and checks the result.
func (ex *splitExchange) run(bw *bufferWorld, r *rank, useWindow bool) {
	send, recv := bw.send[r.number], bw.recv[r.number]
	ex.writeBuffers(bw.harness, r, send, recv)
	r.must(r.launchAndWait(r.group, r.stream, ex.call(r, send, recv, useWindow)))
	ex.checkResult(bw.harness, r, recv)
}

// testSplits tries AllToAllVs of different sizes on one to four ranks.
func testSplits(t *testing.T, h Harness) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 2))
	types := []driver.DataType{driver.Uint8, driver.Float16, driver.Int32, driver.Float64}
	for n := 1; n <= min(4, h.Ranks); n++ {
		bw := newBufferWorld(t, h, n, 4<<20, options{checkCalls: true})
		for i, maxCount := range []int64{0, 1, 40, 5000, 120 << 10} {
			ex := randomExchange(random, n, maxCount, types[(i+n)%len(types)])
			windows := random.IntN(1 << n) // bit r is set if rank r uses its window
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

// testCapturedSplits captures an AllToAllV in a graph, and launches the graph three times.
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

// testSplitsDiffer makes rank 1 expect one element more from rank 0 than rank 0 sends. No rank may
// write its receive buffer.
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
