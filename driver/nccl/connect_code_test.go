package nccl

import (
	"errors"
	"strings"
	"testing"
	"time"

	"symmem/driver"
)

// TestAGroupIsMadeBesideAKernelThatDoesNotEnd though none of ours is on the GPUs yet: on both they
// could not be loaded for the first group. Those of messages were, before it.
func TestAGroupIsMadeBesideAKernelThatDoesNotEnd(t *testing.T) {
	if !apartIgnoringAborts(t, "cuModuleLoadData:3:2,cuModuleLoadData:4:2") {
		return
	}
	withStuckKernel(t).again(t, driver.PathWindow)
}

// TestKernelsThatWereNotLoadedAreLoadedForTheNextGroup has the first of them fail that comes behind
// those of messages.
func TestKernelsThatWereNotLoadedAreLoadedForTheNextGroup(t *testing.T) {
	needDevices(t, 2)
	if !apart(t, "cuModuleLoadData:3:2") {
		return
	}
	p := openPair(t, time.Minute)
	call := p.call(0, driver.PathDirect)
	err := p[0].group.(*communicator).Offer(call).Refusal(driver.PathDirect)
	if !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), "cuModuleLoadData") {
		t.Errorf("the direct path: %v, want none because of cuModuleLoadData", err)
	}
	p.again(t, driver.PathDirect)
	p.closeAll(t)
}
