package nccl

import (
	"errors"
	"strings"
	"testing"
	"time"

	"symmem/driver"
)

// TestConnectWhileAKernelDoesNotEnd connects a group while a kernel is stuck and none of our
// collective kernels are loaded on either GPU, because that failed for the first group. The message
// kernels were loaded before.
func TestConnectWhileAKernelDoesNotEnd(t *testing.T) {
	if !apartIgnoringAborts(t, "cuModuleLoadData:3:2,cuModuleLoadData:4:2") {
		return
	}
	withStuckKernel(t).again(t, driver.PathWindow)
}

// TestKernelsNotLoadedAreLoadedForTheNextGroup makes the load of the collective kernels fail once,
// after that of the message kernels.
func TestKernelsNotLoadedAreLoadedForTheNextGroup(t *testing.T) {
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
