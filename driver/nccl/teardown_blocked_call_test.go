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

// TestBlockedCallEndsAfterWindowKernels launches window kernels and then aborts the group while the
// first plain call to NCCL is waiting on the host for a rank. The call must not be mistaken for a
// window kernel that runs forever.
func TestBlockedCallEndsAfterWindowKernels(t *testing.T) {
	for _, row := range []struct {
		name  string
		stuck bool // whether the window kernel before the call never ends
	}{
		{"ended", false},
		{"stuck", true},
	} {
		t.Run(row.name, func(t *testing.T) {
			if !inSoftGPUProcess(t, "") {
				return
			}
			firstSums = false
			p := openAndSumWithin(t, 20*time.Second)
			if row.stuck {
				if err := dl.Setenv("SOFTGPU_DEAF", "1"); err != nil {
					t.Fatal(err)
				}
				if err := p.launch(0, driver.PathWindow); err != nil {
					t.Fatal(err)
				}
			}
			c := p[0].group.(*communicator)
			c.busy.Windows.Store(true) // the watcher has not reset it yet
			before, _ := c.history.last()
			ended := make(chan error, 1)
			go func() {
				ended <- errors.Join(p.launch(0, driver.PathPlain), p[0].stream.Synchronize(t.Context()))
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			launched := func() bool {
				latest, _ := c.history.last()
				return latest > before
			}
			if err := gpu.Poll(ctx, launched); err != nil {
				t.Fatalf("the call was not made: %v", err)
			}
			p[1].group.Abort(errAborted)
			select {
			case err := <-ended:
				if !errors.Is(err, driver.ErrFault) {
					t.Errorf("got %v, want ErrFault", err)
				}
			case <-ctx.Done():
				t.Fatal("the call does not return")
			}
			select {
			case <-c.stages.kernelsEnded:
			case <-ctx.Done():
				t.Fatal("the teardown of the group does not end")
			}
			if gpu.Stuck.Load() != row.stuck {
				t.Errorf("gpu.Stuck = %v, want %v", gpu.Stuck.Load(), row.stuck)
			}
		})
	}
}

// TestAbortEndsACallAfterFinishedWindowKernels aborts a plain call after window kernels have ended.
// A window kernel would not react to the abort, so the call must not be mistaken for one.
func TestAbortEndsACallAfterFinishedWindowKernels(t *testing.T) {
	needDevices(t, 2)
	if !inSoftGPUProcess(t, "") {
		return
	}
	p := openAndSumWithin(t, 20*time.Second)
	p[0].group.(*communicator).busy.Windows.Store(true) // the watcher has not reset it yet
	if err := p.launch(0, driver.PathPlain); err != nil {
		t.Fatal(err)
	}
	p[1].group.Abort(errAborted)
	if err := p[0].stream.Synchronize(t.Context()); !errors.Is(err, driver.ErrFault) {
		t.Errorf("got %v, want ErrFault", err)
	}
	if gpu.Stuck.Load() {
		t.Error("the call was mistaken for a kernel that does not end")
	}
	p.closeAll(t)
}
