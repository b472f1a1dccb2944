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

// inSoftGPUProcess is like inChildProcess, but injects a failure and skips the test on a real GPU.
// For example, "cuGraphLaunch:1:2" makes the first cuGraphLaunch of the child process return
// code 2, cuda.ErrOutOfMemory.
func inSoftGPUProcess(t *testing.T, failure string, variables ...string) bool {
	t.Helper()
	requireSoftGPU(t, "can inject failures")
	return inChildProcess(t, append(variables, "SOFTGPU_FAIL="+failure)...)
}

const noFailures = ""

// inChildProcess runs the test again in a child process with additional environment variables. It
// returns true in the child process, in which the caller must run the body of the test.
func inChildProcess(t *testing.T, variables ...string) bool {
	t.Helper()
	const testNameVariable = "SYMMEM_TEST_APART" // set only in child processes
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

// checkFault checks that the other rank's failure makes Synchronize return ErrFault.
func checkFault(t *testing.T, s driver.Stream) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := s.Synchronize(ctx); !errors.Is(err, driver.ErrFault) {
		t.Errorf("Synchronize = %v, want ErrFault", err)
	}
}

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

	err := graphs[1].Launch(p[1].stream)
	if err == nil { // rank 1 did not yet know of the failure
		checkFault(t, p[1].stream)
	} else if !errors.Is(err, driver.ErrFault) {
		t.Errorf("rank 1: Launch = %v, want ErrFault", err)
	}

	for _, graph := range graphs {
		if err := graph.Close(); err != nil {
			t.Error(err)
		}
	}

	p.closeAll(t)
}

// If CUDA launches a graph but cannot record the event after it, Launch fails, although the Recv in
// the graph is running. The Recv ends without a message.
func TestRecvInAGraphEndsAfterAFailedLaunch(t *testing.T) {
	if !inSoftGPUProcess(t, "cuEventRecordWithFlags:1:2") {
		return
	}

	p := openPair(t, 5*time.Second)
	buffer := p[1].regions[0].segment.Address()
	graph := p.capture(t, 1, func() error {
		return p.message(1, driver.Recv, buffer, messageBytes, noDigest)
	})
	if err := graph.Launch(p[1].stream); err == nil {
		t.Error("Launch = nil, want an error, because CUDA could not record the event")
	}

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := p[1].stream.Synchronize(ctx); err != nil {
		t.Errorf("Synchronize after the failed Launch = %v, want nil", err)
	}

	sender := p[0].group
	hasFailed := func() bool {
		sender.CheckPeers()
		return sender.Cause() != nil
	}
	if err := gpu.Poll(ctx, hasFailed); err != nil {
		t.Errorf("waiting for the sender to notice the failure: %v", err)
	}

	if err := graph.Close(); err != nil {
		t.Error(err)
	}

	p.closeAll(t)
}

func TestFailedSendFailsTheReceiver(t *testing.T) {
	if !inSoftGPUProcess(t, "cuStreamWriteValue32_v2:2:2") { // call 1 belongs to the Recv
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
