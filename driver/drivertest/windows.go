package drivertest

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"symmem/driver"
)

var windowContracts = []contract{
	{"a segment can be registered, deregistered and registered again", proveReregister},
	{"deregistering twice gives ErrClosed", proveDeregisterTwice},
	{"registering a name twice is an error and harms nothing", proveRegisterTwice},
	{"a buffer without a window gives ErrOutOfRange before launch", proveNoWindow},
	{
		"segments of different size are an error on all ranks and nothing is registered",
		proveSizesDiffer,
	},
	{"a segment can be registered with several groups", proveTwoGroups},
	{"a group can have many windows", proveManyWindows},
}

// sumOver runs an AllReduce of one byte value over a window and checks it.
func (r *rank) sumOver(c driver.Communicator, b buffer, value byte) error {
	const count = 20000
	if !slices.Contains(r.world.harness.Paths, driver.PathWindow) {
		return nil
	}
	if err := r.stream.Fill(b.at(0), value, count); err != nil {
		return err
	}
	err := r.launch(c, r.stream, r.able(c, driver.Call{
		Operation: driver.AllReduce, DataType: driver.Uint8, ReduceOp: driver.Max, Count: count,
		Path: driver.PathWindow, Send: b.at(0), Recv: b.at(count + 96),
		SendWindow: b.window, RecvWindow: b.window, Digest: 1,
	}))
	if err != nil {
		return err
	}
	return r.expectAll(b.at(count+96), value, count)
}

func proveReregister(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{check: true})
	must(t, w.each(func(r *rank) error {
		b, err := r.newBuffer(1)
		if err != nil {
			return err
		}
		for round := range uint32(5) {
			key := driver.SegmentKey{Pool: 1, Ordinal: 3 + round/2}
			if b.window, err = r.group.Register(w.ctx, key, b.segment); err != nil {
				return err
			}
			if err := r.sumOver(r.group, b, byte(round+1)); err != nil {
				return err
			}
			if err := b.window.Deregister(); err != nil {
				return err
			}
		}
		return nil
	}))
}

func proveDeregisterTwice(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{})
	must(t, w.each(func(r *rank) error {
		b, err := r.newWindow(1)
		if err != nil {
			return err
		}
		if err := b.window.Deregister(); err != nil {
			return err
		}
		wantError(t, "deregistering again", b.window.Deregister(), driver.ErrClosed)
		return nil
	}))
}

func proveRegisterTwice(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{check: true})
	must(t, w.each(func(r *rank) error {
		b, err := r.newBuffer(1)
		if err != nil {
			return err
		}
		key := r.nextKey()
		if b.window, err = r.group.Register(w.ctx, key, b.segment); err != nil {
			return err
		}
		if _, err := r.group.Register(w.ctx, key, b.segment); err == nil {
			return errors.New("registering twice gave no error")
		}
		return r.sumOver(r.group, b, 3)
	}))
}

func proveNoWindow(t *testing.T, h Harness) {
	if !slices.Contains(h.Paths, driver.PathWindow) {
		t.Skip("the backend has no window path")
	}
	b := newBench(t, h, 2, 1<<20, options{})
	send, recv := b.send[0], b.recv[0]
	call := driver.Call{
		Operation: driver.AllReduce, DataType: driver.Float32, Count: 256, Path: driver.PathWindow,
		Send: send.at(0), Recv: recv.at(0), SendWindow: send.window, RecvWindow: recv.window,
	}
	for row, change := range map[string]func(*driver.Call){
		"send":    func(c *driver.Call) { c.SendWindow = nil },
		"receive": func(c *driver.Call) { c.RecvWindow = nil },
	} {
		c := call
		change(&c)
		_, err := driver.Prepare(b.ranks[0].group, c)
		wantError(t, row, err, driver.ErrOutOfRange)
	}
}

// proveSizesDiffer registers segments of different size, and then equal ones under the same name.
func proveSizesDiffer(t *testing.T, h Harness) {
	w := newWorld(t, h, 3, options{check: true})
	must(t, w.each(func(r *rank) error {
		bytes := r.granularity()
		if r.number == 1 {
			bytes *= 2
		}
		wrong, err := r.newBuffer(bytes)
		if err != nil {
			return err
		}
		key := r.nextKey()
		if _, err := r.group.Register(w.ctx, key, wrong.segment); err == nil {
			return errors.New("registering gave no error")
		}
		b, err := r.newBuffer(1)
		if err != nil {
			return err
		}
		if b.window, err = r.group.Register(w.ctx, key, b.segment); err != nil {
			return fmt.Errorf("the name is still taken: %w", err)
		}
		return r.sumOver(r.group, b, 8)
	}))
}

func proveTwoGroups(t *testing.T, h Harness) {
	w := newWorld(t, h, 2, options{check: true})
	must(t, w.each(func(r *rank) error {
		second, err := r.connect("second", []int{1, 0}, true)
		if err != nil {
			return err
		}
		b, err := r.newWindow(1)
		if err != nil {
			return err
		}
		both := b
		key := driver.SegmentKey{Pool: 7, Ordinal: r.windows}
		if both.window, err = second.Register(w.ctx, key, b.segment); err != nil {
			return err
		}
		if err := r.sumOver(r.group, b, 1); err != nil {
			return err
		}
		if err := r.sumOver(second, both, 2); err != nil {
			return err
		}
		if _, err := driver.Prepare(second, driver.Call{
			Operation: driver.AllReduce, Count: 1, Path: driver.PathWindow,
			Send: b.at(0), Recv: b.at(0), SendWindow: b.window, RecvWindow: b.window,
		}); err == nil {
			return errors.New("a window of another group gave no error")
		}
		if err := b.window.Deregister(); err != nil {
			return err
		}
		return r.sumOver(second, both, 3)
	}))
}

func proveManyWindows(t *testing.T, h Harness) {
	const n = 100
	w := newWorld(t, h, 2, options{check: true})
	must(t, w.each(func(r *rank) error {
		var all []buffer
		for range n {
			b, err := r.newWindow(1)
			if err != nil {
				return err
			}
			all = append(all, b)
		}
		for i, b := range all {
			if err := r.sumOver(r.group, b, byte(i+1)); err != nil {
				return fmt.Errorf("window %d: %w", i, err)
			}
		}
		for i, b := range all {
			if err := b.window.Deregister(); err != nil {
				return fmt.Errorf("window %d: %w", i, err)
			}
		}
		return nil
	}))
}
