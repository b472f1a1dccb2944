package nccl

import (
	"context"
	"errors"
	"fmt"
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

// pairOfRanks runs two ranks in this process, each with a window over a segment (owned[0]). The
// tests close them explicitly, since ranks with stuck kernels cannot be closed.
type pairOfRanks [2]*testRank

// both runs a function for each rank concurrently.
func both(t *testing.T, f func(r int) error) {
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

// openPair opens both ranks with a timeout. It skips the test on a machine with fewer GPUs.
func openPair(t *testing.T, timeout time.Duration) *pairOfRanks {
	t.Helper()
	needDevices(t, 2)
	p, store := newPair(), &drivertest.Store{}
	both(t, func(r int) error { return p.openOne(t, r, store, timeout) })
	return p
}

func newPair() *pairOfRanks { return &pairOfRanks{newTestRank(0), newTestRank(1)} }

func (p *pairOfRanks) openOne(
	t *testing.T, r int, store driver.Store, timeout time.Duration,
) error {
	me := p[r]
	err := me.open(t, driver.Config{Rank: r, Size: 2, LocalRank: r, Store: store, Timeout: timeout})
	if err != nil {
		return err
	}
	if _, err := me.grow(1); err != nil {
		return err
	}
	return p.connect(t.Context(), r, "first")
}

func (p *pairOfRanks) connect(ctx context.Context, r int, id string) (err error) {
	me := p[r]
	ctx, cancel := connecting(ctx)
	defer cancel()
	me.group, err = me.device.Connect(ctx, driver.GroupConfig{ID: id, Ranks: []int{0, 1}, Rank: r})
	if err != nil {
		return err
	}
	if err := me.group.(driver.LazyWindows).UseWindows(ctx); err != nil {
		return err
	}
	me.owned[0].window, err = me.group.Register(ctx, driver.SegmentKey{Pool: 1}, me.owned[0].segment)
	return err
}

// count is the number of elements of a sum.
const count = 1 << 16

// call returns an all-reduce of the elements at the beginning of each segment.
func (p *pairOfRanks) call(r int, path driver.Path) driver.Call {
	at, w := p[r].owned[0].segment.Address(), p[r].owned[0].window
	return driver.Call{
		Operation: driver.AllReduce, DataType: driver.Float32, Count: count, Send: at,
		Recv: at + 4*count, Path: path, SendWindow: w, RecvWindow: w,
	}
}

// queue launches a call of a rank on its stream.
func (p *pairOfRanks) queue(r int, call driver.Call) error {
	plan, err := prepare(p[r].group, call)
	if err != nil {
		return err
	}
	return p[r].group.Launch(p[r].stream, plan)
}

// launch launches a sum of a rank.
func (p *pairOfRanks) launch(r int, path driver.Path) error { return p.queue(r, p.call(r, path)) }

// sum all-reduces a value of each rank and returns the first element of the result.
func (p *pairOfRanks) sum(
	ctx context.Context, r int, path driver.Path, value float32,
) (float32, error) {
	me := p[r]
	input := make([]float32, count)
	for i := range input {
		input[i] = value
	}
	at := me.owned[0].segment.Address()
	host := uintptr(unsafe.Pointer(&input[0]))
	if err := me.stream.Copy(at, host, 4*count); err != nil {
		return 0, err
	}
	if err := p.launch(r, path); err != nil {
		return 0, err
	}
	if err := me.stream.Synchronize(ctx); err != nil {
		return 0, err
	}
	err := errors.Join(me.stream.Copy(host, at+4*count, 4), me.stream.Synchronize(ctx))
	return input[0], err
}

// leaveOneWaiting launches a window kernel on rank 0 only, with work queued after it. Such a kernel
// runs until the process ends.
func (p *pairOfRanks) leaveOneWaiting(t *testing.T) {
	t.Helper()
	me := p[0]
	err := p.launch(0, driver.PathWindow)
	if err == nil {
		err = me.stream.Fill(me.owned[0].segment.Address(), 0, 4)
	}
	if err != nil {
		t.Fatal(err)
	}
	var late *driver.TimeoutError
	err = me.stream.Synchronize(t.Context())
	if !errors.As(err, &late) || len(late.Missing) != 1 || late.Missing[0] != 1 {
		t.Fatalf("got %v, want a TimeoutError that names rank 1", err)
	}
}

// again makes an all-reduce in a new group.
func (p *pairOfRanks) again(t *testing.T, path driver.Path) {
	t.Helper()
	both(t, func(r int) error {
		if err := p[r].owned[0].window.Deregister(); err != nil {
			return err
		}
		if err := p.connect(t.Context(), r, "second"); err != nil {
			return err
		}
		got, err := p.sum(t.Context(), r, path, float32(10*r+10))
		if err == nil && got != 30 {
			t.Errorf("rank %d: the sum in the new group is %v, want 30", r, got)
		}
		return err
	})
}

// TestKernelThatDoesNotEndIsAbandoned checks that the process, the stream and the GPU stay usable.
func TestKernelThatDoesNotEndIsAbandoned(t *testing.T) {
	needDevices(t, 2)
	if !within(t, "SOFTGPU_DEAF=1") {
		return
	}
	p := withStuckKernel(t)
	p.again(t, driver.PathWindow)
	p.closeAll(t)
}

// TestKernelThatDoesNotEndOnAnAdoptedStream checks that a stuck kernel on an adopted stream is
// detected, and that other groups work and end meanwhile.
func TestKernelThatDoesNotEndOnAnAdoptedStream(t *testing.T) {
	needDevices(t, 2)
	if !within(t, "SOFTGPU_DEAF=1") {
		return
	}
	p := firstSum(t)
	both(t, func(r int) (err error) {
		d := p[r].device
		var theirs cuda.Stream
		err = d.gpu.Do(func() (err error) {
			theirs, err = d.gpu.CUDA.StreamCreate()
			return err
		})
		if err == nil {
			p[r].stream, err = d.AdoptStream(uintptr(theirs))
		}
		return err
	})
	p.leaveOneWaiting(t)
	if !gpu.Stuck.Load() {
		t.Fatal("the kernel was not detected")
	}
	both(t, func(r int) (err error) { // on streams that are not adopted
		p[r].stream, err = p[r].device.NewStream()
		return err
	})
	p.again(t, driver.PathWindow)
	p.closeAll(t)
}

// TestStreamAfterAKernelThatDoesNotEndIsClosed closes a stream that waits for a stuck kernel.
func TestStreamAfterAKernelThatDoesNotEndIsClosed(t *testing.T) {
	needDevices(t, 2)
	if !within(t, "SOFTGPU_DEAF=1") {
		return
	}
	const timeout = time.Minute
	p := firstSumWithin(t, timeout)
	me := p[0]
	behind, err := me.device.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	e, err := me.device.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.launch(0, driver.PathWindow), me.stream.Record(e), behind.Wait(e),
		behind.Fill(me.owned[0].segment.Address(), 0, 4)); err != nil {
		t.Fatal(err)
	}
	p[1].group.Abort(driver.ErrAborted)
	ended(t, me.stream)
	begin := time.Now()
	if err := behind.Close(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close returned %v, want DeadlineExceeded", err)
	}
	if took := time.Since(begin); took > timeout {
		t.Errorf("Close took %v", took)
	}
	p.closeAll(t)
}

// TestDirectKernelsRunWhileAKernelDoesNotEnd checks that direct kernels were loaded before a kernel
// got stuck: loading them later would wait for that kernel.
func TestDirectKernelsRunWhileAKernelDoesNotEnd(t *testing.T) {
	needDevices(t, 2)
	if !within(t, "SOFTGPU_DEAF=1", "CUDA_MODULE_LOADING=LAZY") {
		return
	}
	p := firstSum(t)
	needDirect(t, p[0].group)
	p.leaveOneWaiting(t)
	p.again(t, driver.PathDirect)
}

// TestGroupIsClosedWhileAKernelDoesNotEnd closes a group while a kernel of another group is stuck,
// which was not detected yet. NCCL would wait for that kernel.
func TestGroupIsClosedWhileAKernelDoesNotEnd(t *testing.T) {
	if !apartIgnoringAborts(t, "") {
		return
	}
	p := firstSum(t)
	first := [2]driver.Communicator{p[0].group, p[1].group}
	both(t, func(r int) error { return p.connect(t.Context(), r, "second") })
	if err := p.launch(0, driver.PathWindow); err != nil {
		t.Fatal(err)
	}
	both(t, func(r int) error { return first[r].Close() })
	var late *driver.TimeoutError
	if err := p[0].stream.Synchronize(t.Context()); !errors.As(err, &late) {
		t.Errorf("got %v, want a TimeoutError", err)
	}
	select {
	case <-first[0].(*communicator).stages.tornDown:
	case <-time.After(20 * time.Second):
		t.Error("NCCL waits for the kernel of the other group")
	}
}

// TestFailedConnectReturnsWhileAKernelDoesNotEnd fails to connect a group while a kernel is stuck.
// The ranks must not wait for NCCL, which would wait for that kernel.
func TestFailedConnectReturnsWhileAKernelDoesNotEnd(t *testing.T) {
	// In the first group each rank registers two mailboxes, in the second its own one first.
	if !apartIgnoringAborts(t, "cuMemHostRegister_v2:5,cuMemHostRegister_v2:6") {
		return
	}
	p := withStuckKernel(t)
	var outOfMemory atomic.Int32
	both(t, func(r int) error {
		ended := make(chan error, 1)
		go func() { ended <- p.connect(t.Context(), r, "second") }()
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("rank %d has connected", r)
			}
			if errors.Is(err, cuda.ErrOutOfMemory) {
				outOfMemory.Add(1)
			}
		case <-time.After(20 * time.Second):
			return fmt.Errorf("rank %d is waiting in Connect", r)
		}
		return nil
	})
	if outOfMemory.Load() == 0 {
		t.Error("no rank ran out of memory")
	}
	p.closeAll(t)
}

// apartIgnoringAborts calls apart for two ranks whose window kernels ignore aborts.
func apartIgnoringAborts(t *testing.T, what string) bool {
	t.Helper()
	needDevices(t, 2)
	return apart(t, what, "SOFTGPU_DEAF=1")
}

// withStuckKernel opens two ranks, one of them with a kernel that does not end.
func withStuckKernel(t *testing.T) *pairOfRanks {
	t.Helper()
	p := firstSum(t)
	p.leaveOneWaiting(t)
	return p
}

// firstSum opens two ranks and makes an all-reduce.
func firstSum(t *testing.T) *pairOfRanks {
	t.Helper()
	return firstSumWithin(t, 2*time.Second)
}

// firstSumWithin calls firstSum with a timeout of the ranks.
func firstSumWithin(t *testing.T, timeout time.Duration) *pairOfRanks {
	t.Helper()
	p := openPair(t, timeout)
	both(t, func(r int) error {
		got, err := p.sum(t.Context(), r, driver.PathWindow, float32(r+1))
		if err == nil && got != 3 {
			t.Errorf("rank %d: the sum is %v, want 3", r, got)
		}
		return err
	})
	return p
}
