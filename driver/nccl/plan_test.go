package nccl

import (
	"errors"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/nccl"
)

// TestUnknownTypesAndReductionsAreRefused checks calls for which NCCL has no number. Number 0 would
// be another type or reduction.
func TestUnknownTypesAndReductionsAreRefused(t *testing.T) {
	for name, call := range map[string]driver.Call{
		"a reduction": {Operation: driver.AllReduce, ReduceOp: driver.ReduceOps},
		"a bitwise reduction": {
			Operation: driver.AllReduce, DataType: driver.Int32, ReduceOp: driver.BAnd,
		},
		"a type": {Operation: driver.AllGather, DataType: driver.Float32 + 100},
	} {
		for _, path := range []driver.Path{driver.PathPlain, driver.PathWindow} {
			p := &plan{Call: call}
			if err := p.Refusal(path); !errors.Is(err, driver.ErrUnsupported) {
				t.Errorf("%s, %v: got %v, want ErrUnsupported", name, path, err)
			}
		}
	}
	fine := &plan{Call: driver.Call{Operation: driver.AllGather, ReduceOp: driver.ReduceOps}}
	if err := fine.Refusal(driver.PathPlain); err != nil {
		t.Errorf("an operation that does not reduce: got %v", err)
	}
}

// TestNumbersOfReductionsAreNCCLs compares the table of package driver with the binding.
func TestNumbersOfReductionsAreNCCLs(t *testing.T) {
	for op, want := range map[driver.ReduceOp]nccl.ReduceOp{
		driver.Sum: nccl.Sum, driver.Prod: nccl.Prod, driver.Min: nccl.Min, driver.Max: nccl.Max,
		driver.Avg: nccl.Avg,
	} {
		if got, ok := op.NCCL().Number(); !ok || nccl.ReduceOp(got) != want {
			t.Errorf("%v is number %d in NCCL, want %d", op, got, want)
		}
	}
}

// TestKernelIsChosenOnceForAPlan counts the choices while an offer is queried repeatedly before a
// path is taken.
func TestKernelIsChosenOnceForAPlan(t *testing.T) {
	w := newGroup(t, 2, 10*time.Second)
	needDirect(t, w.opened[0].group)
	w.must(func(m *testRank) error {
		s, err := m.grow(1 << 20)
		if err == nil {
			err = m.register(w, s, 0)
		}
		if err != nil {
			return err
		}
		c, times := m.group.(*communicator), 0
		if err := c.UseWindows(t.Context()); err != nil {
			return err
		}
		call := driver.Call{
			Operation: driver.AllReduce, DataType: driver.Float32, Count: 64, SendWindow: s.window,
			RecvWindow: s.window, Send: s.segment.Address(), Recv: s.segment.Address(),
		}
		c.direct.choose = func(l *kernels.Launch) error {
			times++
			return l.Choose()
		}
		for path, want := range map[driver.Path]int{
			driver.PathPlain: 0, driver.PathWindow: 0, driver.PathDirect: 1,
		} {
			times = 0
			offer := c.Offer(call)
			for range 2 {
				if err := offer.Refusal(path); err != nil {
					return err
				}
				offer.(driver.Remarker).Remark(path)
			}
			if _, err := offer.Take(path, 1); err != nil {
				return err
			}
			if times != want {
				t.Errorf("a kernel was chosen %d times for the %v path, want %d", times, path, want)
			}
		}
		return nil
	})
}

// prepare returns the plan of a call. It uses the plain path if the window path refuses the call.
func prepare(c driver.Communicator, call driver.Call) (driver.Plan, error) {
	if call.Path == driver.PathWindow && c.Offer(call).Refusal(driver.PathWindow) != nil {
		call.Path = driver.PathPlain
	}
	return driver.Prepare(c, call)
}

// TestCallWithoutTicketIsNamedByItsLaunch describes a replayed call, whose ticket is unknown.
func TestCallWithoutTicketIsNamedByItsLaunch(t *testing.T) {
	f := faults{cfg: &driver.GroupConfig{ID: "g"}}
	call := driver.Call{Operation: driver.AllGather}
	if got := f.doing(&call, 12, 63); got != "AllGather 12 of group g" {
		t.Errorf("got %q", got)
	}
	call.Recorded = driver.Recorded{Capture: 4, Call: 1}
	got := f.doing(&call, 0, 63)
	if got != "AllGather, launch 63 of group g, call 1 of capture 4" {
		t.Errorf("got %q", got)
	}
}
