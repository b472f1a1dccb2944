package nccl

import (
	"errors"
	"strings"
	"testing"
	"time"

	"symmem/driver"
)

// lacksDirect checks that the group of a rank has no direct path, and for what reason.
func (p *pairOfRanks) lacksDirect(t *testing.T, why string) {
	t.Helper()
	call := p.call(0, driver.PathDirect)
	err := p[0].group.(*communicator).Direct(&call)
	if !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), why) {
		t.Errorf("the direct path: %v, want none because of %q", err, why)
	}
}

// TestKernelsAreNotLoadedBesideOneThatDoesNotEnd: ranks that have none yet go on without.
func TestKernelsAreNotLoadedBesideOneThatDoesNotEnd(t *testing.T) {
	needDevices(t, 2)
	if !within(t, "SOFTGPU_DEAF=1") {
		return
	}
	p := firstSum(t)
	needDirect(t, p[0].group)
	p.desert(t)
	firstSum(t).lacksDirect(t, "does not end")
}

// TestKernelsThatWereNotLoadedAreLoadedForTheNextGroup has the first of them fail.
func TestKernelsThatWereNotLoadedAreLoadedForTheNextGroup(t *testing.T) {
	if !apart(t, "cuFuncLoad:1:2") {
		return
	}
	var p pairOfRanks
	p.open(t, time.Minute)
	p.lacksDirect(t, "cuFuncLoad")
	p.again(t, driver.PathDirect)
	p.closeAll(t)
}
