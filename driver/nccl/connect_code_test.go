package nccl

import (
	"errors"
	"strings"
	"testing"
	"time"

	"symmem/driver"
)

// TestConnectWhileAKernelDoesNotEnd connects a group while a kernel is stuck. No GPU has loaded the
// collective kernels yet, because the first group failed to load them. The message kernels have
// been loaded.
func TestConnectWhileAKernelDoesNotEnd(t *testing.T) {
	if !inProcessIgnoringAborts(t, "cuModuleLoadData:3:2,cuModuleLoadData:4:2") {
		return
	}
	openWithStuckKernel(t).sumInNewGroup(t, driver.PathWindow)
}

// TestKernelsNotLoadedAreLoadedForNextGroup makes loading the collective kernels fail once. The
// message kernels have already been loaded.
func TestKernelsNotLoadedAreLoadedForNextGroup(t *testing.T) {
	needDevices(t, 2)
	if !inSoftGPUProcess(t, "cuModuleLoadData:3:2") {
		return
	}
	p := openPair(t, time.Minute)
	call := p.call(0, driver.PathDirect)
	err := p[0].group.(*communicator).Offer(call).Refusal(driver.PathDirect)
	if !errors.Is(err, driver.ErrUnsupported) || !strings.Contains(err.Error(), "cuModuleLoadData") {
		t.Errorf("Refusal(PathDirect) = %v, want ErrUnsupported from cuModuleLoadData", err)
	}
	p.sumInNewGroup(t, driver.PathDirect)
	p.closeAll(t)
}
