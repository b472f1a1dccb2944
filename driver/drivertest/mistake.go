package drivertest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"symmem/driver"
	"symmem/driver/formula"
)

var mistakeRequirements = []requirement{
	{"unchecked buffers at different offsets cause wrong sums and no error", testUncheckedBuffers},
	{"checked buffers at different offsets cause a MismatchError and no result", testCheckedMistake},
	{"different calls cause a MismatchError and no result", testDifferentCalls},
	{"a MismatchError names the ranks whose calls differ", testMismatchNames},
	{"after SetCheck(false), digests are ignored", testCheckOff},
	{"SetCheck has no effect on earlier calls", testCheckOrder},
	{"a Recv that expects a different message gets an error and no data", testMessageMismatch},
	{"after a mismatch the group is unusable", testMismatchFinal},
}

// misplacedOffset returns the offset of a rank's buffers in misplacedCall, in bytes.
func misplacedOffset(rank int) int64 { return int64(rank) << 17 }

// misplacedCall returns an AllReduce whose buffers have different offsets on the ranks, which is a
// mistake.
func misplacedCall(bw *bufferWorld, r *rank, path driver.Path, count int64) driver.Call {
	offset := misplacedOffset(r.number)
	send, recv := bw.send[r.number], bw.recv[r.number]
	return r.onSupportedPath(r.group, driver.Call{
		Operation: driver.AllReduce, DataType: driver.Float32, Count: count, Path: path,
		Send: send.addressAt(offset), Recv: recv.addressAt(offset),
		SendWindow: send.window, RecvWindow: recv.window, Digest: uint64(offset) + 1,
	})
}

// testUncheckedBuffers fills the buffers with numbers that depend on the offset, so that a call
// with misplaced buffers gives a wrong sum.
func testUncheckedBuffers(t *testing.T, h Harness) {
	if !slices.Contains(h.Paths, driver.PathWindow) {
		t.Skip("the backend has no window path")
	}

	const n, count = 3, 1 << 14
	bw := newBufferWorld(t, h, n, 1<<20, options{})
	const floatsPerBuffer = 1 << 18
	passed := make([][]byte, n) // the data that each rank passes to the call
	for r := range passed {
		whole := input(h, driver.Float32, r, floatsPerBuffer)
		passed[r] = whole[misplacedOffset(r):][:4*count]
	}

	correctSum := formula.Reduce(driver.AnyFormula, driver.Sum, driver.Float32, passed)
	bw.onEachRank(func(r *rank) {
		data := input(h, driver.Float32, r.number, floatsPerBuffer)
		r.write(bw.send[r.number].addressAt(0), data)
		call := misplacedCall(bw, r, driver.PathWindow, count)
		r.must(r.launchAndWait(r.group, r.stream, call))
		if bytes.Equal(r.read(call.Recv, 4*count), correctSum) {
			r.failf("the sum of misplaced buffers is correct, want a wrong sum")
		}
	})
}

// checkMismatch makes two valid calls and then a third call that differs between the ranks. Every
// rank must get a MismatchError, and the call must not write the receive buffers. As an exception,
// kernels of the direct path may fill their output with poison. checkMismatch returns the errors by
// rank.
func checkMismatch(
	t *testing.T, h Harness, ranks int, thirdCall func(bw *bufferWorld, r *rank) driver.Call,
) []*driver.MismatchError {
	t.Helper()
	bw := newBufferWorld(t, h, ranks, 1<<20, options{checkCalls: true, ignoreCloseErrors: true})
	mismatches := make([]*driver.MismatchError, len(bw.ranks))
	calls := make([]driver.Call, len(bw.ranks))
	bw.onEachRank(func(r *rank) {
		send, recv := bw.send[r.number], bw.recv[r.number]
		for range 2 {
			r.must(r.launchAndWait(r.group, r.stream, barrier))
		}

		r.must(r.stream.Fill(send.addressAt(0), 1, send.segment.Bytes()))
		r.must(r.stream.Fill(recv.addressAt(0), canary, recv.segment.Bytes()))
		calls[r.number] = thirdCall(bw, r)
		err := r.launchAndWait(r.group, r.stream, calls[r.number])
		if !errors.As(err, &mismatches[r.number]) {
			r.failf("got %v, want a MismatchError", err)
		}

		if number := mismatches[r.number].Number; number != 3 {
			r.failf("MismatchError.Number = %d, want 3", number)
		}
	})
	bw.onEachRank(func(r *rank) {
		call := &calls[r.number]
		recv := bw.recv[r.number]
		_, outputBytes := call.Spans(len(r.world.ranks), r.number)
		begin := int64(call.Recv - recv.addressAt(0)) // of the output in the buffer
		end := begin + outputBytes
		r.expectFilled(recv.addressAt(0), canary, begin)
		expectNoResult(r, call.Path, call.Recv, canary, outputBytes)
		r.expectFilled(recv.addressAt(end), canary, recv.segment.Bytes()-end)
	})
	return mismatches
}

// expectNoResult checks that all bytes of an output still have the value before. On the direct
// path, all of them may be poison instead.
func expectNoResult(r *rank, path driver.Path, output uintptr, before byte, count int64) {
	want := before
	if path == driver.PathDirect && count > 0 {
		first := r.read(output, 1)[0]
		if first == poison {
			want = poison
		}
	}

	r.expectFilled(output, want, count)
}

const poison = 0xff // the byte with which a direct kernel that failed fills its output

// mismatchRankCount returns the number of ranks for tests of mistakes. If possible, it includes a
// third rank that is not involved in the mistake.
func mismatchRankCount(h Harness) int { return max(2, min(3, h.Ranks)) }

// testCheckedMistake checks that comparing the digests of calls finds misplaced buffers.
func testCheckedMistake(t *testing.T, h Harness) {
	for _, path := range h.Paths {
		for _, count := range []int64{2, 100, 1 << 14} {
			checkMismatch(t, h, mismatchRankCount(h), func(bw *bufferWorld, r *rank) driver.Call {
				return misplacedCall(bw, r, path, count)
			})
		}
	}
}

func testDifferentCalls(t *testing.T, h Harness) {
	changes := map[string]func(*trial){
		"count":         func(tr *trial) { tr.count++ },
		"smaller count": func(tr *trial) { tr.count = 1 },
		"zero count":    func(tr *trial) { tr.count = 0 },
		"type":          func(tr *trial) { tr.dataType = driver.Float64 },
		"reduction":     func(tr *trial) { tr.op = driver.Max },
		"operation":     func(tr *trial) { tr.operation = driver.Broadcast },
		"barrier":       func(tr *trial) { tr.operation = driver.Barrier },
		"path":          func(tr *trial) { tr.path = h.Paths[0] },
	}
	if len(h.Paths) == 1 {
		delete(changes, "path")
	}

	for name, changeTrial := range changes {
		for _, count := range []int64{5, 1 << 14} {
			t.Run(fmt.Sprint(name, " of ", count), func(t *testing.T) {
				call := func(bw *bufferWorld, r *rank) driver.Call {
					path := h.Paths[len(h.Paths)-1]
					tr := trial{operation: driver.AllReduce, count: count, path: path}
					if r.number == 1 {
						changeTrial(&tr)
					}

					return tr.call(r, bw.send[r.number], bw.recv[r.number])
				}
				checkMismatch(t, h, mismatchRankCount(h), call)
			})
		}
	}
}

func testMismatchNames(t *testing.T, h Harness) {
	mismatches := checkMismatch(t, h, 3, func(bw *bufferWorld, r *rank) driver.Call {
		tr := trial{operation: driver.AllReduce, count: 9}
		call := tr.call(r, bw.send[r.number], bw.recv[r.number])
		call.Digest = uint64(r.number % 2)
		return call
	})
	// The digests are 0, 1 and 0.
	for r, want := range [][]int{{1}, {0, 2}, {1}} {
		if !slices.Equal(mismatches[r].Others, want) {
			t.Errorf("rank %d: Others = %v, want %v", r, mismatches[r].Others, want)
		}

		if mismatches[r].Call == nil || mismatches[r].Call.Count != 9 {
			t.Errorf("rank %d: MismatchError.Call = %+v, want the call with count 9", r,
				mismatches[r].Call)
		}
	}
}

func testCheckOff(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 2, 1<<20, options{checkCalls: true})
	tr := trial{operation: driver.AllReduce, count: 5000}
	tr.prepare(h, 2)
	bw.onEachRank(func(r *rank) {
		r.group.SetCheck(false)
		call := tr.call(r, bw.send[r.number], bw.recv[r.number])
		call.Digest = uint64(r.number)
		r.write(call.Send, tr.inputs[r.number])
		r.must(r.launchAndWait(r.group, r.stream, call))
		r.expectBytes(call.Recv, tr.wantResults[r.number])
	})
}

// testCheckOrder queues a call that differs between the ranks before it calls SetCheck(false).
func testCheckOrder(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 2, 1<<20, options{checkCalls: true, ignoreCloseErrors: true})
	bw.onEachRank(func(r *rank) {
		gate := r.blockStream(r.stream)
		call := driver.Call{Operation: driver.Barrier, Digest: uint64(r.number)}
		r.must(r.queueCall(r.group, r.stream, call))
		r.group.SetCheck(false)
		gate.open()
		err := r.stream.Synchronize(bw.ctx)
		if !isMismatch(err) {
			r.failf("got %v, want a MismatchError", err)
		}
	})
}

func testMessageMismatch(t *testing.T, h Harness) {
	h.require(t, Messages)
	bw := newBufferWorld(t, h, 2, 1<<20, options{checkCalls: true, ignoreCloseErrors: true})
	receiver := bw.ranks[1]
	must(t, receiver.stream.Fill(bw.recv[1].addressAt(0), canary, 256))
	errs := bw.errorsByRank(func(r *rank) error {
		call := message{peer: 1, bytes: 100}.send(bw.send[0])
		if r.number == 1 {
			call = message{peer: 0, bytes: 101}.recv(bw.recv[1])
		}

		call.Digest = callDigest(&call)
		return r.launchAndWait(r.group, r.stream, call)
	})
	err := errs[receiver.number]
	var messageErr *driver.MessageError
	if !isMismatch(err) && !errors.As(err, &messageErr) {
		t.Errorf("got %v, want a MismatchError or MessageError", err)
	}

	receiver.expectFilled(bw.recv[1].addressAt(0), canary, 256)
}

// isMismatch reports whether err is a MismatchError.
func isMismatch(err error) bool {
	var mismatch *driver.MismatchError
	return errors.As(err, &mismatch)
}

func testMismatchFinal(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 2, 1<<20, options{checkCalls: true, ignoreCloseErrors: true})
	bw.onEachRank(func(r *rank) {
		call := driver.Call{Operation: driver.Barrier, Digest: uint64(r.number)}
		launchErr := r.launchAndWait(r.group, r.stream, call)
		<-r.group.Failed()
		if cause := r.group.Cause(); !isMismatch(cause) {
			r.failf("Cause() = %v after launch error %v, want a MismatchError", cause, launchErr)
		}

		call.Digest = 0 // the same on all ranks, as in a correct program
		if err := r.launchAndWait(r.group, r.stream, call); err == nil {
			r.failf("a launch after the mismatch succeeded, want an error")
		}

		if _, err := r.group.Exchange(bw.ctx, driver.LaneControl, nil); err == nil {
			r.failf("an exchange after the mismatch succeeded, want an error")
		}
	})
}
