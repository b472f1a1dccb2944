package gpu

import (
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"symmem/internal/cuda"
	"symmem/internal/dl"
	"symmem/internal/ranked"
)

// GPU is the GPU of a rank, and its primary context.
//
// States: held; given up, after which it is not used.
type GPU struct {
	cuda.Device
	// CUDA makes calls on a thread of the context: see Do.
	CUDA *cuda.Driver
	// anywhere makes single calls on any thread.
	anywhere *cuda.Driver
	context  cuda.Context
	// Adopted reports whether streams of another library were adopted.
	Adopted atomic.Bool
	// Timeout is how long the GPU's own work may take.
	Timeout time.Duration
	// Aside is the stream for that.
	Aside Aside
	// Words holds the words that streams wait for.
	Words Pinned[Word]
	Properties

	mu      ranked.Mutex[gpuMu]
	holders int     // guarded by mu
	left    []*left // guarded by mu
	// kept holds the functions that free what unfinished work has kept. Reclaiming reports whether the
	// first of them is being called. Both are guarded by mu.
	kept       []func() error
	reclaiming bool
}

// hold holds the primary context of a GPU.
func hold(library *cuda.Driver, device cuda.Device) (*GPU, error) {
	context, err := device.RetainPrimary()
	if err != nil {
		return nil, err
	}
	return &GPU{
		Device: device, CUDA: library, anywhere: library.In(context), context: context, holders: 1,
	}, nil
}

// Borrow runs CUDA calls on a thread of the primary context of a GPU, which is held meanwhile.
func Borrow(library *cuda.Driver, device cuda.Device, calls func() error) error {
	g, err := hold(library, device)
	if err != nil {
		return err
	}
	return errors.Join(g.Do(calls), g.Drop())
}

// Open holds the primary context of a GPU, and asks it for its properties.
func Open(library *cuda.Driver, device cuda.Device, timeout time.Duration) (*GPU, error) {
	g, err := hold(library, device)
	if err != nil {
		return nil, err
	}
	g.Timeout = timeout
	if err := g.describe(); err != nil {
		return nil, errors.Join(err, g.Drop())
	}
	return g, nil
}

// Entry is the step that makes the context current, for single calls of libraries that work in it.
func (g *GPU) Entry() dl.Step { return g.CUDA.Entry(g.context) }

// Hold keeps the context until Drop, unless it was given up.
func (g *GPU) Hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.holders > 0 {
		g.holders++
	}
}

// Drop takes Open or a Hold back, and gives the context up with the last of them.
func (g *GPU) Drop() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.holders == 0 {
		return nil
	}
	if g.holders--; g.holders > 0 {
		return nil
	}
	return g.ReleasePrimary()
}

// Held reports whether the context was not given up.
func (g *GPU) Held() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.holders > 0
}

// With makes CUDA calls, possibly on a different thread each, at a lower cost than Do.
func (g *GPU) With(calls func(gpu *cuda.Driver) error) error {
	if !g.Adopted.Load() {
		return calls(g.anywhere)
	}
	return g.Do(func() error { return calls(g.CUDA) })
}

// Do runs CUDA calls on a thread of the context. With another library, whose captures some calls of
// any thread would spoil, the thread is set to spoil none meanwhile.
func (g *GPU) Do(calls func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := g.CUDA.SetCurrent(g.context); err != nil {
		return err
	}
	if g.Adopted.Load() {
		before, err := g.CUDA.ThreadExchangeCaptureMode(cuda.CaptureRelaxed)
		if err != nil {
			return err
		}
		defer func() { _, _ = g.CUDA.ThreadExchangeCaptureMode(before) }() // it has just worked
	}
	return calls()
}

// Get is GPU.Do for a call that returns a value.
func Get[T any](g *GPU, call func() (T, error)) (value T, err error) {
	err = g.Do(func() error {
		value, err = call()
		return err
	})
	return value, err
}

// Knows reports whether CUDA has mapped an address.
func (g *GPU) Knows(address uintptr) bool {
	return nil == g.Do(func() error { return g.CUDA.MemRange(address) })
}
