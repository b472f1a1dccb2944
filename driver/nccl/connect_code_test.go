package nccl

import (
	"errors"
	"strings"
	"testing"
	"time"

	"symmem/driver"
)

// TestConnectWhileAKernelDoesNotEnd connects a group while a kernel is stuck. The collective
// kernels have not been loaded on any GPU, because the first group failed to load them. Only the
// message kernels have been loaded.
func TestConnectWhileAKernelDoesNotEnd(t *testing.T) {
	if !inProcessIgnoringAborts(t, "cuModuleLoadData:3:2,cuModuleLoadData:4:2") {
		return
	}

	openWithStuckKernel(t).sumInNewGroup(t, driver.PathWindow)
}

// TestKernelsNotLoadedAreLoadedForNextGroup makes the first attempt to load the collective
// kernels fail, after the message kernels have been loaded.
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
