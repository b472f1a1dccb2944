package nccl

import (
	"errors"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/dl"
)

// TestAStreamThatIsGivenUpIsSoBeforeItsFaultIsTold: what callers queue once they know must not be
// given up with the kernel that does not end.
func TestAStreamThatIsGivenUpIsSoBeforeItsFaultIsTold(t *testing.T) {
	if !apart(t, "") {
		return
	}
	if err := dl.Setenv("SOFTGPU_DEAF", "1"); err != nil {
		t.Fatal(err)
	}
	var p pairOfRanks
	p.open(t, time.Second)
	both(t, func(r int) error {
		_, err := p.sum(t.Context(), r, driver.PathWindow, 1)
		return err
	})
	_, err := p.sum(t.Context(), 0, driver.PathWindow, 1)
	var late *driver.TimeoutError
	if !errors.As(err, &late) {
		t.Fatalf("got %v, want a TimeoutError", err)
	}
	if !p[0].stream.(*stream).idle() {
		t.Error("the fault is told, but the stream still has the kernel")
	}
}
