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

// TestBlockedCallEndsAfterWindowKernels aborts a group while a plain call waits for a rank inside
// NCCL. The call must not be mistaken for a window kernel that never exits.
func TestBlockedCallEndsAfterWindowKernels(t *testing.T) {
	for _, row := range []struct {
		name    string
		isStuck bool // whether the window kernel before the call never exits
	}{
		{"exited", false},
		{"stuck", true},
	} {
		t.Run(row.name, func(t *testing.T) {
			if !inSoftGPUProcess(t, "") {
				return
			}
			firstSums = false
			p := openAndSumWithTimeout(t, 20*time.Second)
			if row.isStuck {
				if err := dl.Setenv("SOFTGPU_DEAF", "1"); err != nil {
					t.Fatal(err)
				}
				if err := p.launch(0, driver.PathWindow); err != nil {
					t.Fatal(err)
				}
			}
			c := p[0].group.(*communicator)
			c.busy.WindowKernels.Store(true) // the watcher has not reset it yet
			previous, _ := c.history.lastCall()
			returned := make(chan error, 1)
			go func() {
				returned <- errors.Join(p.launch(0, driver.PathPlain), p[0].stream.Synchronize(t.Context()))
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			isLaunched := func() bool {
				latest, _ := c.history.lastCall()
				return latest > previous
			}
			if err := gpu.Poll(ctx, isLaunched); err != nil {
				t.Fatalf("waiting for the plain call to be launched: %v", err)
			}
			p[1].group.Abort(errAborted)
			select {
			case err := <-returned:
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
			if gpu.Stuck.Load() != row.isStuck {
				t.Errorf("gpu.Stuck = %v, want %v", gpu.Stuck.Load(), row.isStuck)
			}
		})
	}
}

// TestAbortEndsACallAfterFinishedWindowKernels aborts a plain call after window kernels, which
// would ignore the abort, have exited.
func TestAbortEndsACallAfterFinishedWindowKernels(t *testing.T) {
	needDevices(t, 2)
	if !inSoftGPUProcess(t, "") {
		return
	}
	p := openAndSumWithTimeout(t, 20*time.Second)
	p[0].group.(*communicator).busy.WindowKernels.Store(true) // the watcher has not reset it yet
	if err := p.launch(0, driver.PathPlain); err != nil {
		t.Fatal(err)
	}
	p[1].group.Abort(errAborted)
	if err := p[0].stream.Synchronize(t.Context()); !errors.Is(err, driver.ErrFault) {
		t.Errorf("Synchronize = %v, want ErrFault", err)
	}
	if gpu.Stuck.Load() {
		t.Error("the call was mistaken for a stuck kernel")
	}
	p.closeAll(t)
}
