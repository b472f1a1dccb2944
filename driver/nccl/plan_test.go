package nccl

import (
	"errors"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/nccl"
)

// A call can run on several paths, such as plain, window and direct. An offer of a call answers
// questions about each path: Refusal returns an error if the path does not support the call, and
// Remark returns a note for users. Take returns a plan, with which the call can be launched on a
// path.

// TestUnknownTypesAndReductionsAreRefused checks that calls with types or reductions that NCCL
// does not have are refused. If symmem passed 0 instead, NCCL would use its type or reduction with
// the number 0.
func TestUnknownTypesAndReductionsAreRefused(t *testing.T) {
	const (
		unknownReduction = driver.ReduceOps // the number of reductions
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

	// An AllGather does not reduce, so its ReduceOp does not matter.
	gather := &plan{Call: driver.Call{Operation: driver.AllGather, ReduceOp: unknownReduction}}
	if err := gather.Refusal(driver.PathPlain); err != nil {
		t.Errorf("AllGather with an unknown reduction: Refusal = %v, want nil", err)
	}
}

// TestOperationsWithoutAnNCCLCallAreRefused checks that plan.collective, which returns NCCL's
// collective for an operation, refuses operations for which NCCL has none.
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

// TestReductionNumbersMatchNCCL compares the numbers of reductions that package driver passes to
// NCCL with the constants of internal/nccl.
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

// TestKernelIsChosenOnceForAPlan checks that an offer chooses a direct kernel at most once,
// although Refusal, Remark and Take all need the choice. On other paths, it must choose none.
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

		call := driver.Call{ // in place
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

// countChoices makes an offer for the call and takes it for the path. It returns how often a direct
// kernel was chosen meanwhile.
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

// prepare returns the plan of a call on the path call.Path. If the window path refuses the call,
// prepare uses the plain path instead.
func prepare(c driver.Communicator, call driver.Call) (driver.Plan, error) {
	if call.Path == driver.PathWindow && c.Offer(call).Refusal(driver.PathWindow) != nil {
		call.Path = driver.PathPlain
	}

	return driver.Prepare(c, call)
}

// TestCallWithoutTicketIsNamedByItsLaunch checks how errors describe a call: by its ticket (its
// number in the group) if that is known. The ticket of a replayed call is unknown, so errors give
// the number of its kernel launch and its position in the capture.
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
