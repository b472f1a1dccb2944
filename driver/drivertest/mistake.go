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

var mistakeClauses = []clause{
	{"unchecked buffers at different offsets cause wrong sums and no error", testUncheckedBuffers},
	{"checked buffers at different offsets cause a MismatchError and no result", testCheckedMistake},
	{"different calls cause a MismatchError and no result", testDifferentCalls},
	{"a MismatchError names the ranks that differ", testMismatchNames},
	{"digests are ignored while the check is off", testCheckOff},
	{"SetCheck applies to later calls only", testCheckOrder},
	{"a Recv that expects a different message gets an error and no data", testMessageMismatch},
	{"after a mismatch the group is unusable", testMismatchFinal},
}

// misplacedCall returns an AllReduce whose buffers have a different offset on every rank.
func misplacedCall(fx *fixture, r *rank, path driver.Path, count int64) driver.Call {
	offset := int64(r.number) << 17
	send, recv := fx.send[r.number], fx.recv[r.number]
	return r.onSupportedPath(r.group, driver.Call{
		Operation: driver.AllReduce, DataType: driver.Float32, Count: count, Path: path,
		Send: send.addr(offset), Recv: recv.addr(offset),
		SendWindow: send.window, RecvWindow: recv.window, Digest: uint64(offset) + 1,
	})
}

// testUncheckedBuffers uses numbers that depend on the offset, so that misplaced buffers change the
// sum.
func testUncheckedBuffers(t *testing.T, h Harness) {
	if !slices.Contains(h.Paths, driver.PathWindow) {
		t.Skip("the backend has no window path")
	}
	const n, count = 3, 1 << 14
	fx := newFixture(t, h, n, 1<<20, options{})
	correct := make([][]byte, n)
	for r := range correct {
		correct[r] = input(h, driver.Float32, r, 1<<18)[r<<17:][:4*count]
	}
	sum := formula.Reduce(driver.AnyFormula, driver.Sum, driver.Float32, correct)
	fx.each(func(r *rank) {
		r.write(fx.send[r.number].addr(0), input(h, driver.Float32, r.number, 1<<18))
		call := misplacedCall(fx, r, driver.PathWindow, count)
		r.must(r.launch(r.group, r.stream, call))
		if bytes.Equal(r.read(call.Recv, 4*count), sum) {
			r.failf("the sum of misplaced buffers is correct, want a wrong sum")
		}
	})
}

// checkMismatch makes two valid calls and then a third call that differs between the ranks. Every
// rank must get a MismatchError, and no receive buffer may be written, except that kernels of the
// direct path may poison their output.
func checkMismatch(
	t *testing.T, h Harness, ranks int, call func(fx *fixture, r *rank) driver.Call,
) []*driver.MismatchError {
	t.Helper()
	fx := newFixture(t, h, ranks, 1<<20, options{check: true, expectFaults: true})
	found := make([]*driver.MismatchError, len(fx.ranks))
	calls := make([]driver.Call, len(fx.ranks))
	fx.each(func(r *rank) {
		send, recv := fx.send[r.number], fx.recv[r.number]
		for range 2 {
			r.must(r.launch(r.group, r.stream, driver.Call{Operation: driver.Barrier}))
		}
		r.must(r.stream.Fill(send.addr(0), 1, send.segment.Bytes()))
		r.must(r.stream.Fill(recv.addr(0), canary, recv.segment.Bytes()))
		calls[r.number] = call(fx, r)
		err := r.launch(r.group, r.stream, calls[r.number])
		if !errors.As(err, &found[r.number]) {
			r.failf("got %v, want a MismatchError", err)
		}
		if s := found[r.number].Number; s != 3 {
			r.failf("MismatchError.Number = %d, want 3", s)
		}
	})
	fx.each(func(r *rank) {
		call, recv := &calls[r.number], fx.recv[r.number]
		_, bytes := call.Spans(len(r.world.ranks), r.number)
		begin := int64(call.Recv - recv.addr(0))
		end := begin + bytes
		r.expectAll(recv.addr(0), canary, begin)
		expectNoResult(r, call.Path, call.Recv, canary, bytes)
		r.expectAll(recv.addr(end), canary, recv.segment.Bytes()-end)
	})
	return found
}

// expectNoResult checks that all bytes of an output still equal before, or are all poison.
func expectNoResult(r *rank, path driver.Path, output uintptr, before byte, bytes int64) {
	if bytes > 0 && path == driver.PathDirect && r.read(output, 1)[0] == poison {
		before = poison
	}
	r.expectAll(output, before, bytes)
}

// poison is the byte with which an aborted kernel fills its output.
const poison = 0xff

// mismatchRanks returns three, so that one rank is not involved in the mistake, or two if the
// backend supports fewer.
func mismatchRanks(h Harness) int { return max(2, min(3, h.Ranks)) }

func testCheckedMistake(t *testing.T, h Harness) {
	for _, path := range h.Paths {
		for _, count := range []int64{2, 100, 1 << 14} {
			checkMismatch(t, h, mismatchRanks(h), func(fx *fixture, r *rank) driver.Call {
				return misplacedCall(fx, r, path, count)
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
	for name, change := range changes {
		for _, count := range []int64{5, 1 << 14} {
			t.Run(fmt.Sprint(name, " of ", count), func(t *testing.T) {
				checkMismatch(t, h, mismatchRanks(h), func(fx *fixture, r *rank) driver.Call {
					tr := trial{operation: driver.AllReduce, count: count, path: h.Paths[len(h.Paths)-1]}
					if r.number == 1 {
						change(&tr)
					}
					return tr.call(r, fx.send[r.number], fx.recv[r.number])
				})
			})
		}
	}
}

func testMismatchNames(t *testing.T, h Harness) {
	found := checkMismatch(t, h, 3, func(fx *fixture, r *rank) driver.Call {
		tr := trial{operation: driver.AllReduce, count: 9}
		call := tr.call(r, fx.send[r.number], fx.recv[r.number])
		call.Digest = uint64(r.number % 2)
		return call
	})
	for r, want := range [][]int{{1}, {0, 2}, {1}} {
		if !slices.Equal(found[r].Others, want) {
			t.Errorf("rank %d: Others = %v, want %v", r, found[r].Others, want)
		}
		if found[r].Call == nil || found[r].Call.Count != 9 {
			t.Errorf("rank %d: MismatchError.Call = %+v, want the call with count 9", r,
				found[r].Call)
		}
	}
}

func testCheckOff(t *testing.T, h Harness) {
	fx := newFixture(t, h, 2, 1<<20, options{check: true})
	tr := trial{operation: driver.AllReduce, count: 5000}
	tr.prepare(h, 2)
	fx.each(func(r *rank) {
		r.group.SetCheck(false)
		call := tr.call(r, fx.send[r.number], fx.recv[r.number])
		call.Digest = uint64(r.number)
		r.write(call.Send, tr.inputs[r.number])
		r.must(r.launch(r.group, r.stream, call))
		r.expect(call.Recv, tr.results[r.number])
	})
}

func testCheckOrder(t *testing.T, h Harness) {
	fx := newFixture(t, h, 2, 1<<20, options{check: true, expectFaults: true})
	fx.each(func(r *rank) {
		g := r.block(r.stream)
		barrier := driver.Call{Operation: driver.Barrier, Digest: uint64(r.number)}
		r.must(r.queue(r.group, r.stream, barrier))
		r.group.SetCheck(false)
		g.open()
		if err := r.stream.Synchronize(fx.ctx); !errors.As(err, new(*driver.MismatchError)) {
			r.failf("got %v, want a MismatchError", err)
		}
	})
}

func testMessageMismatch(t *testing.T, h Harness) {
	h.require(t, Messages)
	fx := newFixture(t, h, 2, 1<<20, options{check: true, expectFaults: true})
	must(t, fx.ranks[1].stream.Fill(fx.recv[1].addr(0), canary, 256))
	err := fx.outcomes(func(r *rank) error {
		call := messageCall(driver.Send, 1, 0, fx.send[0], 0, 100)
		if r.number == 1 {
			call = messageCall(driver.Recv, 0, 0, fx.recv[1], 0, 101)
		}
		call.Digest = digest(&call)
		return r.launch(r.group, r.stream, call)
	})[1]
	if !errors.As(err, new(*driver.MismatchError)) && !errors.As(err, new(*driver.MessageError)) {
		t.Errorf("got %v, want a MismatchError or MessageError", err)
	}
	fx.ranks[1].expectAll(fx.recv[1].addr(0), canary, 256)
}

func testMismatchFinal(t *testing.T, h Harness) {
	fx := newFixture(t, h, 2, 1<<20, options{check: true, expectFaults: true})
	fx.each(func(r *rank) {
		call := driver.Call{Operation: driver.Barrier, Digest: uint64(r.number)}
		launchErr := r.launch(r.group, r.stream, call)
		<-r.group.Failed()
		if !errors.As(r.group.Cause(), new(*driver.MismatchError)) {
			r.failf("Cause() = %v after launch error %v, want a MismatchError", r.group.Cause(),
				launchErr)
		}
		call.Digest = 0
		if err := r.launch(r.group, r.stream, call); err == nil {
			r.failf("a launch after the mismatch succeeded, want an error")
		}
		if _, err := r.group.Exchange(fx.ctx, driver.LaneControl, nil); err == nil {
			r.failf("an exchange after the mismatch succeeded, want an error")
		}
	})
}
