package nccl

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
	"symmem/internal/sys/systest"
)

// These tests make a CUDA function fail on one of two ranks, and check that the other rank gets a
// fault. The software GPU reads the environment variable SOFTGPU_FAIL for this. For example,
// "cuGraphLaunch:1:2" makes the first call of cuGraphLaunch return code 2, cuda.ErrOutOfMemory. The
// software GPU reads the variable only once, so each such test runs in a child process.

// inSoftGPUProcess is like inChildProcess, but skips the test on a real GPU. fail is the value of
// SOFTGPU_FAIL in the child process: "function:call:code". Calls are counted from 1.
func inSoftGPUProcess(t *testing.T, fail string, variables ...string) bool {
	t.Helper()
	requireSoftGPU(t, "can inject failures")
	return inChildProcess(t, append(variables, "SOFTGPU_FAIL="+fail)...)
}

// noFailures is an argument of inSoftGPUProcess with which no call fails.
const noFailures = ""

// inChildProcess runs the test again in a child process with additional environment variables.
//
// In the parent process, it waits for the child process and returns false. If the child process
// fails, so does the test. In the child process, it returns true, and the caller must run the body
// of the test.
func inChildProcess(t *testing.T, variables ...string) bool {
	t.Helper()
	const testNameVariable = "SYMMEM_TEST_APART" // name of the test for which the child was started
	if os.Getenv(testNameVariable) == t.Name() {
		return true
	}

	if usesSoftGPU(t) {
		t.Parallel() // child processes are mostly idle
	}

	c := systest.Command(t, 4*time.Minute, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=3m")
	c.Env = append(os.Environ(), testNameVariable+"="+t.Name())
	c.Env = append(c.Env, variables...)
	if output, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}

	return false
}

// checkFault checks that Synchronize returns ErrFault, because the other rank has failed.
func checkFault(t *testing.T, s driver.Stream) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := s.Synchronize(ctx); !errors.Is(err, driver.ErrFault) {
		t.Errorf("Synchronize = %v, want ErrFault", err)
	}
}

// closeAll closes the streams and devices of both ranks. The test fails if one cannot be closed.
func (p *pairOfRanks) closeAll(t *testing.T) {
	t.Helper()
	for r := range p {
		if err := p[r].stream.Close(); err != nil {
			t.Errorf("rank %d: closing the stream: %v", r, err)
		}

		if err := p[r].device.Close(); err != nil {
			t.Errorf("rank %d: closing the device: %v", r, err)
		}
	}
}

// TestFailedGraphLaunchFailsThePeers makes CUDA fail to launch a graph with a collective on rank
// 0. Rank 1, which launches its graph later, must get a fault.
func TestFailedGraphLaunchFailsThePeers(t *testing.T) {
	if !inSoftGPUProcess(t, "cuGraphLaunch:1:2") {
		return
	}

	p := openPair(t, 5*time.Second)
	var graphs [2]driver.Graph // by rank
	runBoth(t, func(r int) error {
		graphs[r] = p.capture(t, r, func() error { return p.launch(r, driver.PathPlain) })
		return nil
	})
	if err := graphs[0].Launch(p[0].stream); !errors.Is(err, cuda.ErrOutOfMemory) {
		t.Fatalf("rank 0: Launch = %v, want the injected failure", err)
	}

	// Rank 1 may learn of the failure before or after its launch.
	err := graphs[1].Launch(p[1].stream)
	if err == nil {
		checkFault(t, p[1].stream)
	} else if !errors.Is(err, driver.ErrFault) {
		t.Errorf("rank 1: Launch = %v, want ErrFault", err)
	}

	for _, g := range graphs {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}

	p.closeAll(t)
}

// TestRecvInAGraphEndsAfterAFailedLaunch launches a graph with a Recv on rank 1, and makes CUDA
// fail to record the event after the graph. Launch must return an error.
//
// The stream executes the graph nevertheless, so the Recv must stop waiting for its message. Rank 0
// must notice the failure.
func TestRecvInAGraphEndsAfterAFailedLaunch(t *testing.T) {
	if !inSoftGPUProcess(t, "cuEventRecordWithFlags:1:2") {
		return
	}

	p := openPair(t, 5*time.Second)
	buffer := p[1].regions[0].segment.Address()
	g := p.capture(t, 1, func() error {
		return p.message(1, driver.Recv, buffer, messageBytes, noDigest)
	})
	if err := g.Launch(p[1].stream); err == nil {
		t.Error("Launch = nil, want an error, because CUDA could not record the event")
	}

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := p[1].stream.Synchronize(ctx); err != nil {
		t.Errorf("Synchronize after the failed Launch = %v, want nil", err)
	}

	hasFailed := func() bool {
		sender := p[0].group
		sender.CheckPeers()
		return sender.Cause() != nil
	}
	if err := gpu.Poll(ctx, hasFailed); err != nil {
		t.Errorf("waiting for the sender to notice the failure: %v", err)
	}

	if err := g.Close(); err != nil {
		t.Error(err)
	}

	p.closeAll(t)
}

// TestFailedSendFailsTheReceiver makes CUDA fail while rank 0 queues a Send. The stream of rank 1,
// which waits for the message, must get a fault.
func TestFailedSendFailsTheReceiver(t *testing.T) {
	if !inSoftGPUProcess(t, "cuStreamWriteValue32_v2:2:2") {
		return
	}

	p := openPair(t, 5*time.Second)
	buffers := p.addresses()
	if err := p.message(1, driver.Recv, buffers[1], messageBytes, noDigest); err != nil {
		t.Fatal(err)
	}

	err := p.message(0, driver.Send, buffers[0], messageBytes, noDigest)
	if !errors.Is(err, cuda.ErrOutOfMemory) {
		t.Fatalf("Send = %v, want the injected failure", err)
	}

	checkFault(t, p[1].stream)
	p.closeAll(t)
}
