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

// TestBlockedCallEndsAfterWindowKernels aborts a group on rank 1 while a plain call of rank 0
// waits for rank 1 inside NCCL. The abort must end the call, although window kernels, which ignore
// an abort, have been launched before it. The call must not be mistaken for a window kernel that
// never exits.
func TestBlockedCallEndsAfterWindowKernels(t *testing.T) {
	for _, test := range []struct {
		name    string
		isStuck bool // the window kernel before the call never exits
	}{
		{name: "exited", isStuck: false},
		{name: "stuck", isStuck: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			if !inSoftGPUProcess(t, noFailures) {
				return
			}

			// Launches below must block on the host until rank 1 arrives. The child process runs only
			// this test, so the variable need not be reset.
			firstSums = false
			p := openAndSumWithTimeout(t, 20*time.Second)
			if test.isStuck { // launch a window kernel that ignores the abort and never exits
				if err := dl.Setenv("SOFTGPU_DEAF", "1"); err != nil {
					t.Fatal(err)
				}

				if err := p.launch(0, driver.PathWindow); err != nil {
					t.Fatal(err)
				}
			}

			c := p[0].group.(*communicator)
			c.busy.WindowKernels.Store(true)        // as if the watcher had not cleared it yet
			ticketBefore, _ := c.history.lastCall() // tickets number the calls of the group
			plainResult := make(chan error, 1)
			go func() {
				err := p.launch(0, driver.PathPlain)
				plainResult <- errors.Join(err, p[0].stream.Synchronize(t.Context()))
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			isLaunched := func() bool {
				lastTicket, _ := c.history.lastCall()
				return lastTicket > ticketBefore
			}
			if err := gpu.Poll(ctx, isLaunched); err != nil {
				t.Fatalf("waiting for the plain call to be launched: %v", err)
			}

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

			if gpu.Stuck.Load() != test.isStuck {
				t.Errorf("gpu.Stuck = %t, want %t", gpu.Stuck.Load(), test.isStuck)
			}
		})
	}
}

// TestAbortEndsACallAfterFinishedWindowKernels aborts a group while a plain kernel waits for rank
// 1. Window kernels, which would ignore the abort, have exited. The abort must end the plain
// kernel.
func TestAbortEndsACallAfterFinishedWindowKernels(t *testing.T) {
	needDevices(t, 2)
	if !inSoftGPUProcess(t, noFailures) {
		return
	}

	p := openAndSumWithTimeout(t, 20*time.Second)
	// As if the watcher had not cleared it yet.
	p[0].group.(*communicator).busy.WindowKernels.Store(true)
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
