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

// TestACallThatWaitsForARankEndsWhereWindowKernelsWere: NCCL's first plain call of a group waits in
// the call itself, with the stream. It was taken for a window kernel that does not end, so nothing
// ended it.
func TestACallThatWaitsForARankEndsWhereWindowKernelsWere(t *testing.T) {
	for _, row := range []struct {
		name string
		stay bool // a window kernel of rank 0 alone is before it, and does not end
	}{
		{"and have ended", false},
		{"and one does not end", true},
	} {
		t.Run(row.name, func(t *testing.T) {
			if !apart(t, "") {
				return
			}
			firstSums = false
			p := firstSumWithin(t, 20*time.Second)
			if row.stay {
				if err := dl.Setenv("SOFTGPU_DEAF", "1"); err != nil {
					t.Fatal(err)
				}
				if err := p.launch(0, driver.PathWindow); err != nil {
					t.Fatal(err)
				}
			}
			c := p[0].group.(*communicator)
			c.busy.Windows.Store(true) // as until the watcher looks
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
				t.Fatalf("the call is not made: %v", err)
			}
			p[1].group.Abort(errGivenUp)
			select {
			case err := <-ended:
				if !errors.Is(err, driver.ErrFault) {
					t.Errorf("got %v, want that a peer has failed", err)
				}
			case <-ctx.Done():
				t.Fatal("the call does not end")
			}
			select {
			case <-c.stages.kernelsEnded:
			case <-ctx.Done():
				t.Fatal("the end of the group does not come")
			}
			if gpu.Stuck.Load() != row.stay {
				t.Errorf("a kernel that does not end: %v, want %v", gpu.Stuck.Load(), row.stay)
			}
		})
	}
}

// TestAnAbortEndsACallBehindWindowKernelsThatAreOver: the call hears of the abort, though window
// kernels would not.
func TestAnAbortEndsACallBehindWindowKernelsThatAreOver(t *testing.T) {
	needDevices(t, 2)
	if !apart(t, "") {
		return
	}
	p := firstSumWithin(t, 20*time.Second)
	p[0].group.(*communicator).busy.Windows.Store(true) // as until the watcher looks
	if err := p.launch(0, driver.PathPlain); err != nil {
		t.Fatal(err)
	}
	p[1].group.Abort(errGivenUp)
	if err := p[0].stream.Synchronize(t.Context()); !errors.Is(err, driver.ErrFault) {
		t.Errorf("got %v, want that a peer has failed", err)
	}
	if gpu.Stuck.Load() {
		t.Error("the call passes for a kernel that does not end")
	}
	p.closeAll(t)
}
