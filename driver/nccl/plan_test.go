package nccl

import (
	"errors"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
	"symmem/internal/nccl"
)

// NCCL has no numbers for these types and reductions. It must not get 0, which means ncclInt8 or
// ncclSum.
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

	// An AllGather does not use its reduction.
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

// Refusal, Remark and Take of an offer need its direct kernel, but only the first one chooses it.
func TestKernelIsChosenOnceForAPlan(t *testing.T) {
	g := newGroup(t, 2, 10*time.Second)
	needDirect(t, g.opened[0].group)
	g.must(func(r *testRank) error {
		const count = 64
		buffer, err := r.mapRegion(4 * count)
		if err != nil {
			return err
		}

		if err := r.register(g, buffer, windowName); err != nil {
			return err
		}

		if err := r.group.(*communicator).UseWindows(t.Context()); err != nil {
			return err
		}

		call := driver.Call{
			Operation: driver.AllReduce, DataType: driver.Float32, Count: count,
			Send: buffer.segment.Address(), Recv: buffer.segment.Address(),
			SendWindow: buffer.window, RecvWindow: buffer.window,
		}
		for path, wantChoices := range map[driver.Path]int{
			driver.PathPlain: 0, driver.PathWindow: 0, driver.PathDirect: 1,
		} {
			choices, err := r.countChoices(call, path)
			if err != nil {
				return err
			}

			if choices != wantChoices {
				t.Errorf("%v path: got %d choices of a kernel, want %d", path, choices, wantChoices)
			}
		}

		return nil
	})
}

// countChoices returns how often an offer chooses a kernel, if used for the given path.
func (r *testRank) countChoices(call driver.Call, path driver.Path) (choices int, err error) {
	c := r.group.(*communicator)
	c.direct.choose = func(launch kernels.Launch) (kernels.Work, error) {
		choices++
		return kernels.Choose(launch)
	}
	offer := c.Offer(call)
	for range 2 {
		if err := offer.Refusal(path); err != nil {
			return 0, err
		}

		offer.(driver.Remarker).Remark(path)
	}

	const anyDigest = 1
	_, err = offer.Take(path, anyDigest)
	return choices, err
}

// prepare returns a plan for call.Path. If the window path refuses the call, the plan is for the
// plain path.
func prepare(c driver.Communicator, call driver.Call) (driver.Plan, error) {
	if call.Path == driver.PathWindow && c.Offer(call).Refusal(driver.PathWindow) != nil {
		call.Path = driver.PathPlain
	}

	return driver.Prepare(c, call)
}

// An error names a call by its ticket, a sequence number in the group. Replayed calls have no known
// ticket, but a number of the kernel launch and a position in the capture.
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
