package nccl

import (
	"errors"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/nccl"
)

// Types and reductions that NCCL does not have are refused, and not passed to NCCL as its number 0.
func TestUnknownTypesAndReductionsAreRefused(t *testing.T) {
	const (
		unknownReduction = driver.ReduceOps // one above the last
		unknownType      = driver.Float32 + 100
	)
	for name, call := range map[string]driver.Call{
		"unknown reduction": {
			Operation: driver.AllReduce, ReduceOp: unknownReduction,
		},
		"bitwise reduction": {
			Operation: driver.AllReduce, DataType: driver.Int32, ReduceOp: driver.BAnd,
		},
		"unknown type": {
			Operation: driver.AllGather, DataType: unknownType,
		},
	} {
		for _, path := range []driver.Path{driver.PathPlain, driver.PathWindow} {
			p := &plan{Call: call}
			if err := p.Refusal(path); !errors.Is(err, driver.ErrUnsupported) {
				t.Errorf("%s: Refusal(%v) = %v, want ErrUnsupported", name, path, err)
			}
		}
	}

	gather := &plan{Call: driver.Call{Operation: driver.AllGather, ReduceOp: unknownReduction}}
	if err := gather.Refusal(driver.PathPlain); err != nil {
		t.Errorf("AllGather with an unknown reduction: Refusal = %v, want nil", err)
	}
}

func TestOperationsWithoutAnNCCLCallAreRefused(t *testing.T) {
	const unknownOperation = driver.Operation(100)
	for _, operation := range []driver.Operation{
		driver.Send, driver.Recv, driver.AllToAllV, driver.AllReduceRMSNorm, unknownOperation,
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

func TestReductionNumbersMatchNCCL(t *testing.T) {
	for op, want := range map[driver.ReduceOp]nccl.ReduceOp{
		driver.Sum:  nccl.Sum,
		driver.Prod: nccl.Prod,
		driver.Min:  nccl.Min,
		driver.Max:  nccl.Max,
		driver.Avg:  nccl.Avg,
	} {
		got, ok := op.NCCL().Number()
		if !ok || nccl.ReduceOp(got) != want {
			t.Errorf("%v.NCCL().Number() = %d, %t; want %d, true", op, got, ok, want)
		}
	}
}

// An offer chooses its direct kernel once, although Refusal, Remark and Take all need the choice.
func TestKernelIsChosenOnceForAPlan(t *testing.T) {
	w := newGroup(t, 2, 10*time.Second)
	needDirect(t, w.opened[0].group)
	w.must(func(m *testRank) error {
		s, err := m.mapRegion(1 << 20)
		if err != nil {
			return err
		}

		if err := m.register(w, s, windowName); err != nil {
			return err
		}

		if err := m.group.(*communicator).UseWindows(t.Context()); err != nil {
			return err
		}

		call := driver.Call{
			Operation: driver.AllReduce, DataType: driver.Float32, Count: 64, SendWindow: s.window,
			RecvWindow: s.window, Send: s.segment.Address(), Recv: s.segment.Address(),
		}
		for path, wantCount := range map[driver.Path]int{
			driver.PathPlain: 0, driver.PathWindow: 0, driver.PathDirect: 1,
		} {
			count, err := m.countChoices(call, path)
			if err != nil {
				return err
			}

			if count != wantCount {
				t.Errorf("%v path: got %d choices of a kernel, want %d", path, count, wantCount)
			}
		}

		return nil
	})
}

// countChoices offers the call, takes the offer for path, and returns how often it chose a kernel.
func (m *testRank) countChoices(call driver.Call, path driver.Path) (count int, err error) {
	c := m.group.(*communicator)
	c.direct.choose = func(l kernels.Launch) (kernels.Work, error) {
		count++
		return kernels.Choose(l)
	}
	offer := c.Offer(call)
	for range 2 {
		if err := offer.Refusal(path); err != nil {
			return 0, err
		}

		offer.(driver.Remarker).Remark(path)
	}

	const digest = 1
	_, err = offer.Take(path, digest)
	return count, err
}

// prepare returns a plan for call.Path, or for the plain path if the window path refuses the call.
func prepare(c driver.Communicator, call driver.Call) (driver.Plan, error) {
	if call.Path == driver.PathWindow && c.Offer(call).Refusal(driver.PathWindow) != nil {
		call.Path = driver.PathPlain
	}

	return driver.Prepare(c, call)
}

// Errors name a call by its ticket, its sequence number in the group. The ticket of a replayed call
// is unknown, so they name its kernel launch and its position in the capture.
func TestCallWithoutTicketIsNamedByItsLaunch(t *testing.T) {
	const (
		ticket       = 12
		noTicket     = 0
		kernelLaunch = 63
	)
	f := faults{cfg: &driver.GroupConfig{ID: "g"}}
	call := driver.Call{Operation: driver.AllGather}
	want := "AllGather 12 of group g"
	if got := f.describeCall(&call, ticket, kernelLaunch); got != want {
		t.Errorf("describeCall with a ticket = %q, want %q", got, want)
	}

	call.Recorded = driver.Recorded{Capture: 4, Call: 1}
	want = "AllGather, launch 63 of group g, call 1 of capture 4"
	if got := f.describeCall(&call, noTicket, kernelLaunch); got != want {
		t.Errorf("describeCall without a ticket = %q, want %q", got, want)
	}
}
