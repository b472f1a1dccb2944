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

// inSoftGPUProcess runs the test again in a child process, and returns true in that process. In the
// child process, the software GPU makes the given calls fail (SOFTGPU_FAIL). On other GPUs,
// inSoftGPUProcess skips the test.
func inSoftGPUProcess(t *testing.T, calls string, variables ...string) bool {
	t.Helper()
	if !usesSoftGPU(t) {
		t.Skip("only the software GPU can inject failures")
	}
	return inChildProcess(t, append(variables, "SOFTGPU_FAIL="+calls)...)
}

// inChildProcess runs the test again in a child process with additional environment variables, and
// returns true in that process. A new process is needed because libraries read their environment
// variables only once. With the software GPU, the child processes are mostly idle, so the tests
// that start them run in parallel.
func inChildProcess(t *testing.T, variables ...string) bool {
	t.Helper()
	if os.Getenv("SYMMEM_TEST_APART") == t.Name() {
		return true
	}
	if usesSoftGPU(t) {
		t.Parallel()
	}
	c := systest.Command(t, 4*time.Minute, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=3m")
	c.Env = append(append(os.Environ(), "SYMMEM_TEST_APART="+t.Name()), variables...)
	if output, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
	return false
}

// wantFault checks that Synchronize returns a fault. It is called after the peer has failed.
func wantFault(t *testing.T, s driver.Stream) {
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
	both(t, func(r int) error {
		graphs[r] = p.capture(t, r, func() error { return p.launch(r, driver.PathPlain) })
		return nil
	})
	if err := graphs[0].Launch(p[0].stream); !errors.Is(err, cuda.ErrOutOfMemory) {
		t.Fatalf("rank 0: Launch = %v, want the injected failure", err)
	}
	// The launch either returns the fault, or it succeeds and its work fails.
	if err := graphs[1].Launch(p[1].stream); err == nil {
		wantFault(t, p[1].stream)
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

// TestRecvInAGraphEndsAfterAFailedLaunch launches a graph that contains a Recv, and makes CUDA fail
// to record the event that follows the launch. Because the stream still executes the graph although
// the launch has failed, the Recv must stop waiting for its message.
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
	wantFault(t, p[1].stream)
	p.closeAll(t)
}
