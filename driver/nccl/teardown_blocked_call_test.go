package nccl

import (
	"context"
	"errors"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/dl"
)

// In these tests, a plain call of rank 0 waits for rank 1, which aborts the group instead. An abort
// ends a plain call, but not a window kernel: a kernel that uses windows (memory that is registered
// with NCCL) ignores the abort. If a window kernel never exits, the teardown of the group sets
// gpu.Stuck. It must not mistake the plain call for such a kernel.

// setMayHaveWindowKernels marks the group as one whose window kernels may be running, as if the
// group's watcher (a goroutine) had not yet noticed that they have exited.
func setMayHaveWindowKernels(c *communicator) { c.busy.WindowKernels.Store(true) }

// TestBlockedCallEndsAfterWindowKernels aborts while the plain call is blocked on the host, inside
// NCCL. The call must return ErrFault, whether or not an earlier window kernel has exited.
func TestBlockedCallEndsAfterWindowKernels(t *testing.T) {
	for _, test := range []struct {
		name    string
		isStuck bool // the window kernel before the call never exits
	}{
		{name: "exited", isStuck: false},
		{name: "stuck", isStuck: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			if inSoftGPUProcess(t, noFailures) {
				abortBlockedCall(t, test.isStuck)
			}
		})
	}
}

// abortBlockedCall blocks a plain call of rank 0, and aborts the group on rank 1. If isStuck is
// set, it launches a window kernel that never exits before the call.
func abortBlockedCall(t *testing.T, isStuck bool) {
	t.Helper()
	// Now launches block on the host until rank 1 arrives. The child process runs only this test, so
	// the variable need not be reset.
	firstSums = false
	p := openAndSumWithTimeout(t, 20*time.Second)
	if isStuck {
		launchStuckKernel(t, p)
	}

	c := p[0].group.(*communicator)
	setMayHaveWindowKernels(c)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	plainResult := launchBlockedCall(ctx, t, p)
	p[1].group.Abort(errAborted)
	select {
	case err := <-plainResult:
		if !errors.Is(err, driver.ErrFault) {
			t.Errorf("plain call = %v, want ErrFault", err)
		}
	case <-ctx.Done():
		t.Fatal("the plain call did not return after the abort")
	}

	select {
	case <-c.stages.kernelsEnded:
	case <-ctx.Done():
		t.Fatal("the teardown did not stop the group's kernels")
	}

	if gpu.Stuck.Load() != isStuck {
		t.Errorf("gpu.Stuck = %t, want %t", gpu.Stuck.Load(), isStuck)
	}
}

// launchStuckKernel launches a window kernel on rank 0 that ignores the abort and never exits.
func launchStuckKernel(t *testing.T, p *pairOfRanks) {
	t.Helper()
	if err := dl.Setenv("SOFTGPU_DEAF", "1"); err != nil {
		t.Fatal(err)
	}

	if err := p.launch(0, driver.PathWindow); err != nil {
		t.Fatal(err)
	}
}

// launchBlockedCall begins a plain call on rank 0 and returns once its launch has been recorded.
// The channel receives the call's error.
func launchBlockedCall(ctx context.Context, t *testing.T, p *pairOfRanks) <-chan error {
	t.Helper()
	c := p[0].group.(*communicator)
	ticketBefore, _ := c.history.lastCall() // tickets number the calls of the group
	result := make(chan error, 1)
	go func() {
		err := p.launch(0, driver.PathPlain)
		result <- errors.Join(err, p[0].stream.Synchronize(t.Context()))
	}()
	isLaunched := func() bool {
		lastTicket, _ := c.history.lastCall()
		return lastTicket > ticketBefore
	}
	if err := gpu.Poll(ctx, isLaunched); err != nil {
		t.Fatalf("waiting for the plain call to be launched: %v", err)
	}

	return result
}

// TestAbortEndsACallAfterFinishedWindowKernels aborts while the kernel of the plain call waits for
// rank 1. All window kernels have exited. The stream must get ErrFault.
func TestAbortEndsACallAfterFinishedWindowKernels(t *testing.T) {
	needDevices(t, 2)
	if !inSoftGPUProcess(t, noFailures) {
		return
	}

	p := openAndSumWithTimeout(t, 20*time.Second)
	setMayHaveWindowKernels(p[0].group.(*communicator))
	if err := p.launch(0, driver.PathPlain); err != nil {
		t.Fatal(err)
	}

	p[1].group.Abort(errAborted)
	if err := p[0].stream.Synchronize(t.Context()); !errors.Is(err, driver.ErrFault) {
		t.Errorf("Synchronize = %v, want ErrFault", err)
	}

	if gpu.Stuck.Load() {
		t.Error("gpu.Stuck = true, want false: the call was mistaken for a stuck kernel")
	}

	p.closeAll(t)
}
