package nccl

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"
	"unsafe"

	"symmem/driver"
	"symmem/driver/drivertest"
	"symmem/internal/dl"
)

// pairOfRanks are two ranks of this process, each with a window over a segment.
type pairOfRanks [2]struct {
	device  driver.Device
	group   driver.Communicator
	stream  driver.Stream
	segment driver.Segment
	window  driver.Window
}

// both runs a function for each rank at once.
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

// open opens the ranks; a group waits for the given time.
func (p *pairOfRanks) open(t *testing.T, timeout time.Duration) {
	t.Helper()
	store := &drivertest.Store{}
	both(t, func(r int) error { return p.openOne(t.Context(), r, store, timeout) })
}

func (p *pairOfRanks) openOne(
	ctx context.Context, r int, store driver.Store, timeout time.Duration,
) (err error) {
	me := &p[r]
	me.device, err = Backend{}.Open(ctx, driver.Config{
		Rank: r, Size: 2, LocalRank: r, Store: store, Timeout: timeout,
	})
	if err != nil {
		return err
	}
	if me.stream, err = me.device.NewStream(); err != nil {
		return err
	}
	arena, err := me.device.NewArena(me.device.Info().Granularity)
	if err != nil {
		return err
	}
	me.segment, err = arena.Map(0, me.device.Info().Granularity)
	return errors.Join(err, p.connect(ctx, r, "first"))
}

func (p *pairOfRanks) connect(ctx context.Context, r int, id string) (err error) {
	me := &p[r]
	ctx, cancel := connecting(ctx)
	defer cancel()
	me.group, err = me.device.Connect(ctx, driver.GroupConfig{ID: id, Ranks: []int{0, 1}, Rank: r})
	if err != nil {
		return err
	}
	if err := me.group.(driver.LazyWindows).UseWindows(ctx); err != nil {
		return err
	}
	me.window, err = me.group.Register(ctx, driver.SegmentKey{Pool: 1}, me.segment)
	return err
}

// sum adds a value of each rank over the window and returns what the first element became.
func (p *pairOfRanks) sum(ctx context.Context, r int, value float32) (float32, error) {
	const count = 1 << 16
	me := &p[r]
	input := make([]float32, count)
	for i := range input {
		input[i] = value
	}
	at := me.segment.Address()
	host := uintptr(unsafe.Pointer(&input[0]))
	if err := me.stream.Copy(at, host, 4*count); err != nil {
		return 0, err
	}
	plan, err := me.group.Prepare(driver.Call{
		Operation: driver.AllReduce, DataType: driver.Float32, Count: count, Send: at,
		Recv: at + 4*count, Path: driver.PathWindow, SendWindow: me.window, RecvWindow: me.window,
	})
	if err != nil {
		return 0, err
	}
	if err := me.group.Launch(me.stream, plan); err != nil {
		return 0, err
	}
	if err := me.stream.Synchronize(ctx); err != nil {
		return 0, err
	}
	err = errors.Join(me.stream.Copy(host, at+4*count, 4), me.stream.Synchronize(ctx))
	return input[0], err
}

// TestAKernelThatDoesNotEndIsGivenUp leaves a window kernel waiting for a rank that never comes.
// Such a kernel runs until the process ends; the process, its stream and its GPU go on.
func TestAKernelThatDoesNotEndIsGivenUp(t *testing.T) {
	needDevices(t, 2)
	if err := dl.Setenv("SOFTGPU_DEAF", "1"); err != nil {
		t.Fatal(err)
	}
	defer dl.Setenv("SOFTGPU_DEAF", "0")
	var p pairOfRanks
	p.open(t, 2*time.Second)
	both(t, func(r int) error {
		got, err := p.sum(t.Context(), r, float32(r+1))
		if err == nil && got != 3 {
			t.Errorf("rank %d: the sum is %v, want 3", r, got)
		}
		return err
	})
	_, err := p.sum(t.Context(), 0, 1)
	var late *driver.TimeoutError
	if !errors.As(err, &late) || len(late.Missing) != 1 || late.Missing[0] != 1 {
		t.Fatalf("got %v, want a TimeoutError that names rank 1", err)
	}
	both(t, func(r int) error {
		if err := p[r].window.Deregister(); err != nil {
			return err
		}
		if err := p.connect(t.Context(), r, "second"); err != nil {
			return err
		}
		got, err := p.sum(t.Context(), r, float32(10*r+10))
		if err == nil && got != 30 {
			t.Errorf("rank %d: the sum in the new group is %v, want 30", r, got)
		}
		return err
	})
	for r := range p {
		if err := errors.Join(p[r].stream.Close(), p[r].device.Close()); err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}
