package nccl

import (
	"errors"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/nccl"
)

// TestUnknownTypesAndReductionsAreRefused checks calls whose type or reduction NCCL does not
// have. If 0 were passed to NCCL instead, it would select another type or reduction.
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
				t.Errorf("%s: Refusal(%v) = %v, want ErrUnsupported", name, path, err)
			}
		}
	}
	gather := &plan{Call: driver.Call{Operation: driver.AllGather, ReduceOp: driver.ReduceOps}}
	if err := gather.Refusal(driver.PathPlain); err != nil {
		t.Errorf("AllGather with an unknown reduction: Refusal = %v, want nil", err)
	}
}

// TestOperationsWithoutAnNCCLCallAreRefused checks operations for which NCCL has no collective.
// They must not run as another collective.
func TestOperationsWithoutAnNCCLCallAreRefused(t *testing.T) {
	for _, operation := range []driver.Operation{
		driver.Send, driver.Recv, driver.AllToAllV, driver.AllReduceRMSNorm, driver.Operation(100),
	} {
		p := &plan{
			Call: driver.Call{Operation: operation},
			c:    &communicator{device: &Device{}, comm: &ncclComm{}},
		}
		if _, err := p.collective(); !errors.Is(err, driver.ErrUnsupported) {
			t.Errorf("%v: collective() = %v, want ErrUnsupported", operation, err)
		}
	}
}

// TestReductionNumbersMatchNCCL compares the table in package driver with the constants of
// package internal/nccl.
func TestReductionNumbersMatchNCCL(t *testing.T) {
	for op, want := range map[driver.ReduceOp]nccl.ReduceOp{
		driver.Sum: nccl.Sum, driver.Prod: nccl.Prod, driver.Min: nccl.Min, driver.Max: nccl.Max,
		driver.Avg: nccl.Avg,
	} {
		if got, ok := op.NCCL().Number(); !ok || nccl.ReduceOp(got) != want {
			t.Errorf("%v.NCCL().Number() = %d, want %d", op, got, want)
		}
	}
}

// TestKernelIsChosenOnceForAPlan queries an offer repeatedly before taking a path, and counts how
// often a kernel is chosen.
func TestKernelIsChosenOnceForAPlan(t *testing.T) {
	w := newGroup(t, 2, 10*time.Second)
	needDirect(t, w.opened[0].group)
	w.must(func(m *testRank) error {
		s, err := m.mapRegion(1 << 20)
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
		c.direct.choose = func(l kernels.Launch) (kernels.Work, error) {
			times++
			return kernels.Choose(l)
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
				t.Errorf("%v path: got %d choices of a kernel, want %d", path, times, want)
			}
		}
		return nil
	})
}

// prepare returns the plan of a call. If the call's path is the window path, but that path
// refuses the call, the plan uses the plain path.
func prepare(c driver.Communicator, call driver.Call) (driver.Plan, error) {
	if call.Path == driver.PathWindow && c.Offer(call).Refusal(driver.PathWindow) != nil {
		call.Path = driver.PathPlain
	}
	return driver.Prepare(c, call)
}

// TestCallWithoutTicketIsNamedByItsLaunch checks the description of a replayed call, whose ticket
// is unknown.
func TestCallWithoutTicketIsNamedByItsLaunch(t *testing.T) {
	f := faults{cfg: &driver.GroupConfig{ID: "g"}}
	call := driver.Call{Operation: driver.AllGather}
	got, want := f.describeCall(&call, 12, 63), "AllGather 12 of group g"
	if got != want {
		t.Errorf("describe = %q, want %q", got, want)
	}
	call.Recorded = driver.Recorded{Capture: 4, Call: 1}
	want = "AllGather, launch 63 of group g, call 1 of capture 4"
	if got := f.describeCall(&call, 0, 63); got != want {
		t.Errorf("describe = %q, want %q", got, want)
	}
}
