package drivertest

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"symmem/driver"
)

// In an AllToAllV, each rank sends a part of its send buffer to every rank, including itself. The
// call's splits are the sizes and offsets of the parts. To detect writes to gaps between parts, the
// tests fill receive buffers with a fixed byte, the canary.

var splitRequirements = []requirement{
	{"AllToAllV writes every part to its offset and nothing else", testSplits},
	{"a captured AllToAllV can be replayed", testCapturedSplits},
	{"inconsistent splits cause the same MessageError on all ranks and no result", testSplitsDiffer},
	{"AllToAll on one rank and AllToAllV on another cause a MismatchError", testDifferentAllToAlls},
}

// splitExchange holds the arguments of all ranks' AllToAllV. Counts and offsets are in elements.
type splitExchange struct {
	counts      [][]int64 // [sender][receiver]
	sendOffsets [][]int64 // [sender][receiver]
	recvOffsets [][]int64 // [receiver][sender]
	dataType    driver.DataType
}

// randomExchange returns an AllToAllV of n ranks with random parts of up to maxCount elements.
func randomExchange(random *rand.Rand, n int, maxCount int64, t driver.DataType) *splitExchange {
	ex := &splitExchange{dataType: t}
	for range n {
		sendCounts := make([]int64, n)
		for dst := range sendCounts {
			isEmpty := random.IntN(4) == 0
			if !isEmpty {
				sendCounts[dst] = random.Int64N(maxCount + 1)
			}
		}

		ex.counts = append(ex.counts, sendCounts)
	}

	for number := range n {
		ex.sendOffsets = append(ex.sendOffsets, randomOffsets(random, ex.counts[number]))
		ex.recvOffsets = append(ex.recvOffsets, randomOffsets(random, ex.recvCounts(number)))
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

// randomOffsets places parts with the given counts in random order, with gaps before some of them.
func randomOffsets(random *rand.Rand, counts []int64) []int64 {
	offsets := make([]int64, len(counts))
	end := int64(0)
	for _, i := range random.Perm(len(counts)) {
		gap := 3 * random.Int64N(2) // 0 or 3
		offsets[i] = end + gap
		end = offsets[i] + counts[i]
	}

	return offsets
}

// splits returns a rank's splits. The caller may change the counts.
func (ex *splitExchange) splits(rank int) *driver.Splits {
	return &driver.Splits{
		SendCounts: slices.Clone(ex.counts[rank]), SendOffsets: ex.sendOffsets[rank],
		RecvCounts: ex.recvCounts(rank), RecvOffsets: ex.recvOffsets[rank],
	}
}

// inputOfPart returns the data that rank src sends to rank dst.
func (ex *splitExchange) inputOfPart(h Harness, src, dst int) []byte {
	seed := 100 + len(ex.counts)*src + dst // different for each part
	return input(h, ex.dataType, seed, ex.counts[src][dst])
}

// call returns a rank's call without windows. Its output begins after canaryCount bytes.
func (ex *splitExchange) call(r *rank, send, recv buffer) driver.Call {
	return driver.Call{
		Operation: driver.AllToAllV, DataType: ex.dataType, Splits: ex.splits(r.number),
		Send: send.addressAt(0), Recv: recv.addressAt(canaryCount), Digest: commonDigest,
	}
}

// writeBuffers writes rank r's input and fills its receive buffer with canaries.
func (ex *splitExchange) writeBuffers(h Harness, r *rank, send, recv buffer) {
	elementBytes := int64(ex.dataType.Size())
	for dst := range ex.counts {
		offset := ex.sendOffsets[r.number][dst] * elementBytes
		r.write(send.addressAt(offset), ex.inputOfPart(h, r.number, dst))
	}

	r.must(r.stream.Fill(recv.addressAt(0), canary, recv.segment.Bytes()))
}

// checkResult checks the received parts and the canaries around them.
func (ex *splitExchange) checkResult(h Harness, r *rank, recv buffer) {
	elementBytes := int64(ex.dataType.Size())
	want := bytes.Repeat([]byte{canary}, int(recv.segment.Bytes()))
	for src := range ex.counts {
		offset := canaryCount + ex.recvOffsets[r.number][src]*elementBytes
		copy(want[offset:], ex.inputOfPart(h, src, r.number))
	}

	r.expectBytes(recv.addressAt(0), want)
}

func testSplits(t *testing.T, h Harness) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 2))
	types := []driver.DataType{driver.Uint8, driver.Float16, driver.Int32, driver.Float64}
	const bufferBytes, maxFloat64s = 4 << 20, 120 << 10 // the buffer has room for 4 parts
	for n := 1; n <= min(4, h.Ranks); n++ {
		bw := newBufferWorld(t, h, n, bufferBytes, options{checkCalls: true})
		for i, maxCount := range []int64{0, 1, 40, 5000, maxFloat64s} {
			dataType := types[(i+n)%len(types)]
			ex := randomExchange(random, n, maxCount, dataType)
			windowMask := random.IntN(1 << n) // bit i is set if rank i sends from its window
			succeeded := bw.tryOnEachRank(func(r *rank) {
				send, recv := bw.send[r.number], bw.recv[r.number]
				ex.writeBuffers(h, r, send, recv)
				call := ex.call(r, send, recv)
				if windowMask&(1<<r.number) != 0 {
					call.SendWindow = send.window
				}

				r.must(r.launchAndWait(r.group, r.stream, call))
				ex.checkResult(h, r, recv)
			})
			if !succeeded {
				t.Fatalf("the splits of seed %d failed: %d ranks, at most %d elements in a part, "+
					"windows %b", seed, n, maxCount, windowMask)
			}
		}
	}
}

func testCapturedSplits(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, min(3, h.Ranks), 2<<20, options{checkCalls: true})
	ex := randomExchange(rand.New(rand.NewPCG(4, 4)), len(bw.ranks), 60<<10, driver.Int32)
	bw.onEachRank(func(r *rank) {
		send, recv := bw.send[r.number], bw.recv[r.number]
		call := ex.call(r, send, recv)
		call.SendWindow = send.window
		g := r.capture(func() { r.must(r.queueCall(r.group, r.stream, call)) })
		for round := range 3 {
			r.setStep("round %d", round)
			ex.writeBuffers(h, r, send, recv)
			r.must(g.Launch(r.stream))
			ex.checkResult(h, r, recv) // waits for the launch
		}
	})
}

// Rank 1 expects one more element from rank 0 than rank 0 sends.
func testSplitsDiffer(t *testing.T, h Harness) {
	n := mismatchRankCount(h)
	bw := newBufferWorld(t, h, n, 1<<20, options{checkCalls: true, ignoreCloseErrors: true})
	ex := randomExchange(rand.New(rand.NewPCG(7, 7)), n, 20<<10, driver.Int32)
	sent := uint64(ex.counts[0][1])
	errs := bw.errorsByRank(func(r *rank) error {
		send, recv := bw.send[r.number], bw.recv[r.number]
		ex.writeBuffers(h, r, send, recv)
		call := ex.call(r, send, recv)
		switch r.number {
		case 0:
			call.SendWindow = send.window
		case 1:
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

func testDifferentAllToAlls(t *testing.T, h Harness) {
	checkMismatch(t, h, mismatchRankCount(h), func(bw *bufferWorld, r *rank) driver.Call {
		const count = 100
		send, recv := bw.send[r.number], bw.recv[r.number]
		if r.number == 1 {
			ex := randomExchange(rand.New(rand.NewPCG(9, 9)), len(bw.ranks), count, driver.Int32)
			return ex.call(r, send, recv)
		}

		tr := trial{operation: driver.AllToAll, dataType: driver.Int32, count: count}
		return tr.call(r, send, recv)
	})
}
