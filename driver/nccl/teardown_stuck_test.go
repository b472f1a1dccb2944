package nccl

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"symmem/driver"
	"symmem/driver/drivertest"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
)

// pairOfRanks holds two ranks of this process. Each rank has a window over one segment
// (regions[0]). The ranks are not closed automatically, because ranks with stuck kernels cannot
// be closed. Tests close the others.
type pairOfRanks [2]*testRank

// runBoth runs f concurrently for each rank.
func runBoth(t *testing.T, f func(r int) error) {
	t.Helper()
	var errs [2]error
	var all sync.WaitGroup
	for r := range errs {
		all.Go(func() { errs[r] = f(r) })
	}

	all.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
}

// openPair opens two ranks with the given timeout. If the machine has fewer than two GPUs, it
// skips the test.
func openPair(t *testing.T, timeout time.Duration) *pairOfRanks {
	t.Helper()
	needDevices(t, 2)
	p, store := newPair(), &drivertest.Store{}
	runBoth(t, func(r int) error { return p.openOne(t, r, store, timeout) })
	return p
}

func newPair() *pairOfRanks { return &pairOfRanks{newTestRank(0), newTestRank(1)} }

func (p *pairOfRanks) openOne(
	t *testing.T, r int, store driver.Store, timeout time.Duration,
) error {
	m := p[r]
	err := m.open(t, driver.Config{Rank: r, Size: 2, LocalRank: r, Store: store, Timeout: timeout})
	if err != nil {
		return err
	}

	if _, err := m.mapRegion(1); err != nil {
		return err
	}

	return p.connect(t.Context(), r, "first")
}

func (p *pairOfRanks) connect(ctx context.Context, r int, id string) (err error) {
	m := p[r]
	ctx, cancel := connectContext(ctx)
	defer cancel()
	m.group, err = m.device.Connect(ctx, driver.GroupConfig{ID: id, Ranks: []int{0, 1}, Rank: r})
	if err != nil {
		return err
	}

	if err := m.group.(driver.LazyWindows).UseWindows(ctx); err != nil {
		return err
	}

	m.regions[0].window, err = m.group.Register(ctx, driver.SegmentKey{Pool: 1}, m.regions[0].segment)
	return err
}

// count is the number of elements in the all-reduces of pairOfRanks.
const count = 1 << 16

// call returns an all-reduce whose input is at the beginning of each segment, followed by the
// output.
func (p *pairOfRanks) call(r int, path driver.Path) driver.Call {
	base, w := p[r].regions[0].segment.Address(), p[r].regions[0].window
	return driver.Call{
		Operation: driver.AllReduce, DataType: driver.Float32, Count: count, Send: base,
		Recv: base + 4*count, Path: path, SendWindow: w, RecvWindow: w,
	}
}

// queue launches a call on the stream of rank r.
func (p *pairOfRanks) queue(r int, call driver.Call) error {
	plan, err := prepare(p[r].group, call)
	if err != nil {
		return err
	}

	return p[r].group.Launch(p[r].stream, plan)
}

func (p *pairOfRanks) launch(r int, path driver.Path) error { return p.queue(r, p.call(r, path)) }

// sum fills the input of rank r with value, runs the all-reduce, and returns the first element of
// the output.
func (p *pairOfRanks) sum(
	ctx context.Context, r int, path driver.Path, value float32,
) (float32, error) {
	m := p[r]
	input := make([]float32, count)
	for i := range input {
		input[i] = value
	}

	base := m.regions[0].segment.Address()
	host := uintptr(unsafe.Pointer(&input[0]))
	if err := m.stream.Copy(base, host, 4*count); err != nil {
		return 0, err
	}

	if err := p.launch(r, path); err != nil {
		return 0, err
	}

	if err := m.stream.Synchronize(ctx); err != nil {
		return 0, err
	}

	err := errors.Join(m.stream.Copy(host, base+4*count, 4), m.stream.Synchronize(ctx))
	return input[0], err
}

// launchStuckKernel launches a window kernel on rank 0 only, so that the kernel runs until the
// process exits. It queues work after the kernel and waits for the timeout.
func (p *pairOfRanks) launchStuckKernel(t *testing.T) {
	t.Helper()
	m := p[0]
	err := p.launch(0, driver.PathWindow)
	if err == nil {
		err = m.stream.Fill(m.regions[0].segment.Address(), 0, 4)
	}

	if err != nil {
		t.Fatal(err)
	}

	var timeoutErr *driver.TimeoutError
	err = m.stream.Synchronize(t.Context())
	if !errors.As(err, &timeoutErr) || !slices.Equal(timeoutErr.Missing, []int{1}) {
		t.Fatalf("Synchronize = %v, want a TimeoutError that names rank 1", err)
	}
}

func (p *pairOfRanks) sumInNewGroup(t *testing.T, path driver.Path) {
	t.Helper()
	runBoth(t, func(r int) error {
		if err := p[r].regions[0].window.Deregister(); err != nil {
			return err
		}

		if err := p.connect(t.Context(), r, "second"); err != nil {
			return err
		}

		got, err := p.sum(t.Context(), r, path, float32(10*r+10))
		if err == nil && got != 30 {
			t.Errorf("rank %d: sum in the new group = %v, want 30", r, got)
		}

		return err
	})
}

// TestKernelThatDoesNotEndIsAbandoned checks that the process, the stream and the GPU stay usable
// after a stuck kernel has been abandoned.
func TestKernelThatDoesNotEndIsAbandoned(t *testing.T) {
	needDevices(t, 2)
	if !inChildProcess(t, "SOFTGPU_DEAF=1") {
		return
	}

	p := openWithStuckKernel(t)
	p.sumInNewGroup(t, driver.PathWindow)
	p.closeAll(t)
}

// TestKernelThatDoesNotEndOnAnAdoptedStream checks that a stuck kernel on an adopted stream is
// detected, and that other groups can run calls and be closed while the kernel runs.
func TestKernelThatDoesNotEndOnAnAdoptedStream(t *testing.T) {
	needDevices(t, 2)
	if !inChildProcess(t, "SOFTGPU_DEAF=1") {
		return
	}

	p := openAndSum(t)
	runBoth(t, func(r int) (err error) {
		d := p[r].device
		var cudaStream cuda.Stream
		err = d.gpu.Do(func() (err error) {
			cudaStream, err = d.gpu.CUDA.StreamCreate()
			return err
		})
		if err == nil {
			p[r].stream, err = d.AdoptStream(uintptr(cudaStream))
		}

		return err
	})
	p.launchStuckKernel(t)
	if !gpu.Stuck.Load() {
		t.Fatal("the stuck kernel was not detected")
	}

	runBoth(t, func(r int) (err error) { // on streams that are not adopted
		p[r].stream, err = p[r].device.NewStream()
		return err
	})
	p.sumInNewGroup(t, driver.PathWindow)
	p.closeAll(t)
}

// TestStreamAfterAKernelThatDoesNotEndIsClosed closes a stream that waits for a stuck kernel.
func TestStreamAfterAKernelThatDoesNotEndIsClosed(t *testing.T) {
	needDevices(t, 2)
	if !inChildProcess(t, "SOFTGPU_DEAF=1") {
		return
	}

	const timeout = time.Minute
	p := openAndSumWithTimeout(t, timeout)
	m := p[0]
	waiting, err := m.device.NewStream()
	if err != nil {
		t.Fatal(err)
	}

	e, err := m.device.NewEvent()
	if err != nil {
		t.Fatal(err)
	}

	if err := errors.Join(p.launch(0, driver.PathWindow), m.stream.Record(e), waiting.Wait(e),
		waiting.Fill(m.regions[0].segment.Address(), 0, 4)); err != nil {
		t.Fatal(err)
	}

	p[1].group.Abort(driver.ErrAborted)
	checkFault(t, m.stream)
	begin := time.Now()
	if err := waiting.Close(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close = %v, want DeadlineExceeded", err)
	}

	if took := time.Since(begin); took > timeout {
		t.Errorf("Close took %v, want at most %v", took, timeout)
	}

	p.closeAll(t)
}

// TestDirectKernelsRunWhileAKernelDoesNotEnd checks that direct kernels can be launched while a
// kernel is stuck. They must have been loaded earlier, because loading them now would wait for
// the stuck kernel.
func TestDirectKernelsRunWhileAKernelDoesNotEnd(t *testing.T) {
	needDevices(t, 2)
	if !inChildProcess(t, "SOFTGPU_DEAF=1", "CUDA_MODULE_LOADING=LAZY") {
		return
	}

	p := openAndSum(t)
	needDirect(t, p[0].group)
	p.launchStuckKernel(t)
	p.sumInNewGroup(t, driver.PathDirect)
}

// TestGroupIsClosedWhileAKernelDoesNotEnd closes a group while a kernel of another group is stuck
// and has not yet been detected. The teardown must not wait for NCCL, because NCCL waits for that
// kernel.
func TestGroupIsClosedWhileAKernelDoesNotEnd(t *testing.T) {
	if !inProcessIgnoringAborts(t, "") {
		return
	}

	p := openAndSum(t)
	first := [2]driver.Communicator{p[0].group, p[1].group}
	runBoth(t, func(r int) error { return p.connect(t.Context(), r, "second") })
	if err := p.launch(0, driver.PathWindow); err != nil {
		t.Fatal(err)
	}

	runBoth(t, func(r int) error { return first[r].Close() })
	var timeoutErr *driver.TimeoutError
	if err := p[0].stream.Synchronize(t.Context()); !errors.As(err, &timeoutErr) {
		t.Errorf("Synchronize = %v, want a TimeoutError", err)
	}

	select {
	case <-first[0].(*communicator).stages.allFreed:
	case <-time.After(20 * time.Second):
		t.Error("the teardown is waiting for the other group's stuck kernel")
	}
}

// TestFailedConnectReturnsWhileAKernelDoesNotEnd makes Connect fail while a kernel is stuck. The
// ranks must not wait for NCCL, because NCCL waits for that kernel.
func TestFailedConnectReturnsWhileAKernelDoesNotEnd(t *testing.T) {
	// Each rank registers two mailboxes for the first group, which takes registrations 1 to 4.
	// Registrations 5 and 6 are those of the ranks' own mailboxes in the second group.
	if !inProcessIgnoringAborts(t, "cuMemHostRegister_v2:5,cuMemHostRegister_v2:6") {
		return
	}

	p := openWithStuckKernel(t)
	var outOfMemory atomic.Int32
	runBoth(t, func(r int) error {
		connected := make(chan error, 1)
		go func() { connected <- p.connect(t.Context(), r, "second") }()
		select {
		case err := <-connected:
			if err == nil {
				t.Errorf("rank %d: Connect succeeded, want an error", r)
			}

			if errors.Is(err, cuda.ErrOutOfMemory) {
				outOfMemory.Add(1)
			}
		case <-time.After(20 * time.Second):
			return fmt.Errorf("rank %d: Connect did not return", r)
		}

		return nil
	})
	if outOfMemory.Load() == 0 {
		t.Error("Connect returned ErrOutOfMemory on no rank")
	}

	p.closeAll(t)
}

// inProcessIgnoringAborts calls inSoftGPUProcess for two ranks whose window kernels ignore aborts.
func inProcessIgnoringAborts(t *testing.T, calls string) bool {
	t.Helper()
	needDevices(t, 2)
	return inSoftGPUProcess(t, calls, "SOFTGPU_DEAF=1")
}

// openWithStuckKernel opens two ranks, runs an all-reduce, and launches a stuck kernel on rank 0.
func openWithStuckKernel(t *testing.T) *pairOfRanks {
	t.Helper()
	p := openAndSum(t)
	p.launchStuckKernel(t)
	return p
}

func openAndSum(t *testing.T) *pairOfRanks {
	t.Helper()
	return openAndSumWithTimeout(t, 2*time.Second)
}

func openAndSumWithTimeout(t *testing.T, timeout time.Duration) *pairOfRanks {
	t.Helper()
	p := openPair(t, timeout)
	runBoth(t, func(r int) error {
		got, err := p.sum(t.Context(), r, driver.PathWindow, float32(r+1))
		if err == nil && got != 3 {
			t.Errorf("rank %d: sum = %v, want 3", r, got)
		}

		return err
	})
	return p
}
