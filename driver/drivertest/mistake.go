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
	{"a Recv that expects a different message gets an error and no data", testPairMismatch},
	{"after a mismatch the group is unusable", testMismatchFinal},
}

// misplacedCall returns an AllReduce whose buffers have a different offset on every rank.
func misplacedCall(b *fixture, r *rank, path driver.Path, count int64) driver.Call {
	offset := int64(r.number) << 17
	send, recv := b.send[r.number], b.recv[r.number]
	return r.onSupportedPath(r.group, driver.Call{
		Operation: driver.AllReduce, DataType: driver.Float32, Count: count, Path: path,
		Send: send.addr(offset), Recv: recv.addr(offset),
		SendWindow: send.window, RecvWindow: recv.window, Digest: uint64(offset) + 1,
	})
}

// testUncheckedBuffers fills each rank's window with numbers that depend on the offset, so that
// misplaced buffers change the sum.
func testUncheckedBuffers(t *testing.T, h Harness) {
	if !slices.Contains(h.Paths, driver.PathWindow) {
		t.Skip("the backend has no window path")
	}
	const n, count = 3, 1 << 14
	b := newFixture(t, h, n, 1<<20, options{})
	correct := make([][]byte, n)
	for r := range correct {
		correct[r] = input(h, driver.Float32, r, 1<<18)[r<<17:][:4*count]
	}
	sum := formula.Reduce(driver.AnyFormula, driver.Sum, driver.Float32, correct)
	b.each(func(r *rank) {
		r.write(b.send[r.number].addr(0), input(h, driver.Float32, r.number, 1<<18))
		call := misplacedCall(b, r, driver.PathWindow, count)
		r.ok(r.launch(r.group, r.stream, call))
		if bytes.Equal(r.read(call.Recv, 4*count), sum) {
			r.failf("the sum of misplaced buffers is correct, want a wrong sum")
		}
	})
}

// checkMismatch makes two valid calls and then a third call that differs between the ranks. For the
// third call, every rank must get a MismatchError, and no receive buffer may be written. The only
// exception is the direct path, whose kernels detect the mismatch and may poison their output.
func checkMismatch(
	t *testing.T, h Harness, ranks int, call func(b *fixture, r *rank) driver.Call,
) []*driver.MismatchError {
	t.Helper()
	b := newFixture(t, h, ranks, 1<<20, options{check: true, expectFaults: true})
	found := make([]*driver.MismatchError, len(b.ranks))
	calls := make([]driver.Call, len(b.ranks))
	b.each(func(r *rank) {
		send, recv := b.send[r.number], b.recv[r.number]
		for range 2 {
			r.ok(r.launch(r.group, r.stream, driver.Call{Operation: driver.Barrier}))
		}
		r.ok(r.stream.Fill(send.addr(0), 1, send.segment.Bytes()))
		r.ok(r.stream.Fill(recv.addr(0), canary, recv.segment.Bytes()))
		calls[r.number] = call(b, r)
		err := r.launch(r.group, r.stream, calls[r.number])
		if !errors.As(err, &found[r.number]) {
			r.failf("got %v, want a MismatchError", err)
		}
		if s := found[r.number].Number; s != 3 {
			r.failf("MismatchError.Number = %d, want 3", s)
		}
	})
	b.each(func(r *rank) {
		call, recv := &calls[r.number], b.recv[r.number]
		_, bytes := call.Spans(len(r.world.ranks), r.number)
		begin := int64(call.Recv - recv.addr(0))
		end := begin + bytes
		r.expectAll(recv.addr(0), canary, begin)
		expectNoResult(r, call.Path, call.Recv, canary, bytes)
		r.expectAll(recv.addr(end), canary, recv.segment.Bytes()-end)
	})
	return found
}

// expectNoResult checks that every byte of a call's output still equals before, or that a kernel
// has poisoned the whole output.
func expectNoResult(r *rank, path driver.Path, output uintptr, before byte, bytes int64) {
	if bytes > 0 && path == driver.PathDirect && r.read(output, 1)[0] == poison {
		before = poison
	}
	r.expectAll(output, before, bytes)
}

// poison is the byte with which an aborted kernel fills its output.
const poison = 0xff

// mismatchRanks returns the number of ranks for most mismatch tests: three, so that one rank is not
// involved in the mistake, or two if the backend supports fewer. With a backend that supports only
// one rank, newWorld skips the tests.
func mismatchRanks(h Harness) int { return max(2, min(3, h.Ranks)) }

func testCheckedMistake(t *testing.T, h Harness) {
	for _, path := range h.Paths {
		for _, count := range []int64{2, 100, 1 << 14} {
			checkMismatch(t, h, mismatchRanks(h), func(b *fixture, r *rank) driver.Call {
				return misplacedCall(b, r, path, count)
			})
		}
	}
}

func testDifferentCalls(t *testing.T, h Harness) {
	changes := map[string]func(*trial){
		"count":         func(c *trial) { c.count++ },
		"smaller count": func(c *trial) { c.count = 1 },
		"zero count":    func(c *trial) { c.count = 0 },
		"type":          func(c *trial) { c.dataType = driver.Float64 },
		"reduction":     func(c *trial) { c.op = driver.Max },
		"operation":     func(c *trial) { c.operation = driver.Broadcast },
		"barrier":       func(c *trial) { c.operation = driver.Barrier },
		"path":          func(c *trial) { c.path = h.Paths[0] },
	}
	if len(h.Paths) == 1 {
		delete(changes, "path")
	}
	for name, change := range changes {
		for _, count := range []int64{5, 1 << 14} {
			t.Run(fmt.Sprint(name, " of ", count), func(t *testing.T) {
				checkMismatch(t, h, mismatchRanks(h), func(b *fixture, r *rank) driver.Call {
					c := trial{operation: driver.AllReduce, count: count, path: h.Paths[len(h.Paths)-1]}
					if r.number == 1 {
						change(&c)
					}
					return c.call(r, b.send[r.number], b.recv[r.number])
				})
			})
		}
	}
}

func testMismatchNames(t *testing.T, h Harness) {
	found := checkMismatch(t, h, 3, func(b *fixture, r *rank) driver.Call {
		c := trial{operation: driver.AllReduce, count: 9}
		call := c.call(r, b.send[r.number], b.recv[r.number])
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
	b := newFixture(t, h, 2, 1<<20, options{check: true})
	c := trial{operation: driver.AllReduce, count: 5000}
	c.prepare(h, 2)
	b.each(func(r *rank) {
		r.group.SetCheck(false)
		call := c.call(r, b.send[r.number], b.recv[r.number])
		call.Digest = uint64(r.number)
		r.write(call.Send, c.inputs[r.number])
		r.ok(r.launch(r.group, r.stream, call))
		r.expect(call.Recv, c.wants[r.number])
	})
}

func testCheckOrder(t *testing.T, h Harness) {
	b := newFixture(t, h, 2, 1<<20, options{check: true, expectFaults: true})
	b.each(func(r *rank) {
		g := r.block(r.stream)
		barrier := driver.Call{Operation: driver.Barrier, Digest: uint64(r.number)}
		r.ok(r.queue(r.group, r.stream, barrier))
		r.group.SetCheck(false)
		g.open()
		if err := r.stream.Synchronize(b.ctx); !errors.As(err, new(*driver.MismatchError)) {
			r.failf("got %v, want a MismatchError", err)
		}
	})
}

func testPairMismatch(t *testing.T, h Harness) {
	h.require(t, Messages)
	b := newFixture(t, h, 2, 1<<20, options{check: true, expectFaults: true})
	must(t, b.ranks[1].stream.Fill(b.recv[1].addr(0), canary, 256))
	err := b.outcomes(func(r *rank) error {
		call := p2pCall(driver.Send, 1, 0, b.send[0], 0, 100)
		if r.number == 1 {
			call = p2pCall(driver.Recv, 0, 0, b.recv[1], 0, 101)
		}
		call.Digest = digest(&call)
		return r.launch(r.group, r.stream, call)
	})[1]
	if !errors.As(err, new(*driver.MismatchError)) && !errors.As(err, new(*driver.MessageError)) {
		t.Errorf("got %v, want a MismatchError or MessageError", err)
	}
	b.ranks[1].expectAll(b.recv[1].addr(0), canary, 256)
}

func testMismatchFinal(t *testing.T, h Harness) {
	b := newFixture(t, h, 2, 1<<20, options{check: true, expectFaults: true})
	b.each(func(r *rank) {
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
		if _, err := r.group.Exchange(b.ctx, driver.LaneControl, nil); err == nil {
			r.failf("an exchange after the mismatch succeeded, want an error")
		}
	})
}
