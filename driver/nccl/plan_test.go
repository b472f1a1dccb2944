package nccl

import (
	"errors"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/nccl"
)

// TestUnknownTypesAndReductionsAreRefused checks types and reductions that NCCL does not have. If 0
// were passed to NCCL instead, it would select another one.
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

// TestOperationsWithoutAnNCCLCallAreRefused checks that no operation runs as another collective.
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

// TestReductionNumbersMatchNCCL compares the table in package driver with internal/nccl.
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

// TestKernelIsChosenOnceForAPlan queries an offer repeatedly before it takes a path.
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
		c, choiceCount := m.group.(*communicator), 0
		if err := c.UseWindows(t.Context()); err != nil {
			return err
		}
		call := driver.Call{
			Operation: driver.AllReduce, DataType: driver.Float32, Count: 64, SendWindow: s.window,
			RecvWindow: s.window, Send: s.segment.Address(), Recv: s.segment.Address(),
		}
		c.direct.choose = func(l kernels.Launch) (kernels.Work, error) {
			choiceCount++
			return kernels.Choose(l)
		}
		for path, want := range map[driver.Path]int{
			driver.PathPlain: 0, driver.PathWindow: 0, driver.PathDirect: 1,
		} {
			choiceCount = 0
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
			if choiceCount != want {
				t.Errorf("%v path: got %d choices of a kernel, want %d", path, choiceCount, want)
			}
		}
		return nil
	})
}

// prepare returns the plan of a call, on the plain path if the window path refuses the call.
func prepare(c driver.Communicator, call driver.Call) (driver.Plan, error) {
	if call.Path == driver.PathWindow && c.Offer(call).Refusal(driver.PathWindow) != nil {
		call.Path = driver.PathPlain
	}
	return driver.Prepare(c, call)
}

// TestCallWithoutTicketIsNamedByItsLaunch checks a replayed call, whose ticket (number) is unknown.
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
