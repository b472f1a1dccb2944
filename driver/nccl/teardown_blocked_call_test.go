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

// An abort ends calls on the plain path, but not the kernels of the window path. If such a kernel
// never exits, the group's teardown sets gpu.Stuck. It must not mistake a blocked plain call for a
// stuck kernel.

func pretendToHaveWindowKernels(c *communicator) { c.busy.WindowKernels.Store(true) }

// An abort ends a plain call that blocks its thread inside NCCL, even behind a stuck kernel.
func TestBlockedCallEndsAfterWindowKernels(t *testing.T) {
	for _, test := range []struct {
		name    string
		isStuck bool // a window kernel never exits
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

// abortBlockedCall aborts the group on rank 1 while a plain call of rank 0 waits for rank 1.
func abortBlockedCall(t *testing.T, isStuck bool) {
	t.Helper()
	firstSums = false // makes the launch block until rank 1 arrives
	p := openAndSumWithTimeout(t, 20*time.Second)
	if isStuck {
		launchStuckKernel(t, p)
	}

	c := p[0].group.(*communicator)
	pretendToHaveWindowKernels(c)
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

func launchStuckKernel(t *testing.T, p *pairOfRanks) {
	t.Helper()
	// Make window kernels ignore aborts.
	if err := dl.Setenv("SOFTGPU_DEAF", "1"); err != nil {
		t.Fatal(err)
	}

	if err := p.launch(0, driver.PathWindow); err != nil {
		t.Fatal(err)
	}
}

// launchBlockedCall waits until a plain call of rank 0 has been recorded, and returns a channel for
// its error.
func launchBlockedCall(ctx context.Context, t *testing.T, p *pairOfRanks) <-chan error {
	t.Helper()
	c := p[0].group.(*communicator)
	previousCall, _ := c.history.lastCall()
	result := make(chan error, 1)
	go func() {
		err := p.launch(0, driver.PathPlain)
		result <- errors.Join(err, p[0].stream.Synchronize(t.Context()))
	}()
	isLaunched := func() bool {
		lastCall, _ := c.history.lastCall()
		return lastCall > previousCall
	}
	if err := gpu.Poll(ctx, isLaunched); err != nil {
		t.Fatalf("waiting for the plain call to be launched: %v", err)
	}

	return result
}

// An abort ends a plain call that waits for rank 1 on the GPU, even after window kernels.
func TestAbortEndsACallAfterFinishedWindowKernels(t *testing.T) {
	needDevices(t, 2)
	if !inSoftGPUProcess(t, noFailures) {
		return
	}

	p := openAndSumWithTimeout(t, 20*time.Second)
	pretendToHaveWindowKernels(p[0].group.(*communicator))
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
