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

// inSoftGPUProcess is inChildProcess with the software GPU, which makes the given calls fail. On
// other GPUs, it skips the test.
func inSoftGPUProcess(t *testing.T, calls string, variables ...string) bool {
	t.Helper()
	requireSoftGPU(t, "can inject failures")
	return inChildProcess(t, append(variables, "SOFTGPU_FAIL="+calls)...)
}

// inChildProcess runs the test again in a child process with additional environment variables,
// which libraries read only once. It returns true in that process.
func inChildProcess(t *testing.T, variables ...string) bool {
	t.Helper()
	if os.Getenv("SYMMEM_TEST_APART") == t.Name() {
		return true
	}
	if usesSoftGPU(t) {
		t.Parallel() // child processes are mostly idle
	}
	c := systest.Command(t, 4*time.Minute, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=3m")
	c.Env = append(append(os.Environ(), "SYMMEM_TEST_APART="+t.Name()), variables...)
	if output, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
	return false
}

// checkFault checks that Synchronize returns a fault after the peer has failed.
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
		if err := errors.Join(p[r].stream.Close(), p[r].device.Close()); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

func TestFailedGraphLaunchFailsThePeers(t *testing.T) {
	if !inSoftGPUProcess(t, "cuGraphLaunch:1:2") {
		return
	}
	p := openPair(t, 5*time.Second)
	var graphs [2]driver.Graph
	runBoth(t, func(r int) error {
		graphs[r] = p.capture(t, r, func() error { return p.launch(r, driver.PathPlain) })
		return nil
	})
	if err := graphs[0].Launch(p[0].stream); !errors.Is(err, cuda.ErrOutOfMemory) {
		t.Fatalf("rank 0: Launch = %v, want the injected failure", err)
	}
	// The launch either returns the fault, or it succeeds and its work fails.
	if err := graphs[1].Launch(p[1].stream); err == nil {
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

// TestRecvInAGraphEndsAfterAFailedLaunch launches a graph with a Recv, and makes CUDA fail to
// record the event after the launch. The stream still executes the graph, so the wait for the
// message must end.
func TestRecvInAGraphEndsAfterAFailedLaunch(t *testing.T) {
	if !inSoftGPUProcess(t, "cuEventRecordWithFlags:1:2") {
		return
	}
	p := openPair(t, 5*time.Second)
	at := p[1].regions[0].segment.Address()
	g := p.capture(t, 1, func() error { return p.message(1, driver.Recv, at, 8, 0) })
	if err := g.Launch(p[1].stream); err == nil {
		t.Error("Launch succeeded although CUDA could not record the event")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := p[1].stream.Synchronize(ctx); err != nil {
		t.Errorf("Synchronize after the failed Launch = %v, want nil", err)
	}
	err := gpu.Poll(ctx, func() bool { p[0].group.CheckPeers(); return p[0].group.Cause() != nil })
	if err != nil {
		t.Errorf("waiting for the sender to notice the failure: %v", err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	p.closeAll(t)
}

func TestFailedSendFailsTheReceiver(t *testing.T) {
	if !inSoftGPUProcess(t, "cuStreamWriteValue32_v2:2:2") {
		return
	}
	p := openPair(t, 5*time.Second)
	if err := p.message(1, driver.Recv, p[1].regions[0].segment.Address(), 8, 0); err != nil {
		t.Fatal(err)
	}
	err := p.message(0, driver.Send, p[0].regions[0].segment.Address(), 8, 0)
	if !errors.Is(err, cuda.ErrOutOfMemory) {
		t.Fatalf("Send = %v, want the injected failure", err)
	}
	checkFault(t, p[1].stream)
	p.closeAll(t)
}
