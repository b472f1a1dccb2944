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

// GPU wraps a rank's GPU and its primary context. A context holds CUDA's state of a GPU, such as
// memory and streams. All libraries of the process share the primary context. References (Hold and
// Drop) keep it. Do not use a GPU after the last Drop.
//
// Most CUDA calls work on the context that is current on their thread. Goroutines change threads,
// so calls have one of two forms:
//
//	g.Do(calls)     keeps the goroutine on one thread, and makes the context current there
//	g.With(calls)   makes the context current again for each call of CUDA
//
// Another library can capture a stream: CUDA then adds the stream's work to a graph instead of
// running it. Some calls of symmem would invalidate this capture, unless their thread is in CUDA's
// relaxed capture mode. The GPU uses this mode once it knows of such a library (Adopted).
type GPU struct {
	cuda.Device
	CUDA            *cuda.Driver // for threads where the context is current, as in Do
	anyThreadDriver *cuda.Driver // makes the context current in each call
	context         cuda.Context
	Adopted         atomic.Bool   // whether another library is known to use streams of the GPU
	Timeout         time.Duration // limit for waits for internal work
	InternalStreams InternalStreams
	Words           Pinned[Word] // words of host memory that the GPU can access
	Properties

	mu             ranked.Mutex[gpuMu] // guards the following fields
	referenceCount int                 // 0 once the context has been released

	// The next fields belong to FreeWhenIdle and Reclaim, which free memory after the end of work.

	unfinishedWork []*unfinishedItem // work that may still use memory
	deferredFrees  []func() error    // for Reclaim to call, in this order
	reclaiming     chan struct{}     // closed when the running call of deferredFrees[0] ends, or nil
	unreported     error             // joined errors for the next Reclaim to return, or nil
}

// Open retains the primary context of a GPU until Drop. timeout is GPU.Timeout.
func Open(library *cuda.Driver, device cuda.Device, timeout time.Duration) (*GPU, error) {
	g, err := retain(library, device)
	if err != nil {
		return nil, err
	}

	g.Timeout = timeout
	if err := g.queryProperties(); err != nil {
		dropErr := g.Drop()
		return nil, errors.Join(err, dropErr)
	}

	return g, nil
}

// Borrow runs calls on a thread where the device's primary context is current. It retains the
// context only during the calls.
func Borrow(library *cuda.Driver, device cuda.Device, calls func() error) error {
	g, err := retain(library, device)
	if err != nil {
		return err
	}

	callsErr := g.Do(calls)
	dropErr := g.Drop()
	return errors.Join(callsErr, dropErr)
}

// retain returns a GPU with one reference and without properties.
func retain(library *cuda.Driver, device cuda.Device) (*GPU, error) {
	context, err := device.RetainPrimary()
	if err != nil {
		return nil, err
	}

	return &GPU{
		Device: device, CUDA: library, anyThreadDriver: library.InContext(context), context: context,
		referenceCount: 1,
	}, nil
}

// Hold adds a reference to the context, unless it has been released.
func (g *GPU) Hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.referenceCount > 0 {
		g.referenceCount++
	}
}

// Drop removes a reference. The last Drop releases the context.
func (g *GPU) Drop() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.referenceCount == 0 {
		return nil
	}

	g.referenceCount--
	if g.referenceCount > 0 {
		return nil
	}

	return g.ReleasePrimary()
}

// IsHeld reports whether the context is still retained.
func (g *GPU) IsHeld() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.referenceCount > 0
}

// SharesContext reports whether g and other use the same context.
func (g *GPU) SharesContext(other *GPU) bool { return g.context == other.context }

// Entry returns a step that makes the context current before a call to another C library.
func (g *GPU) Entry() dl.Step { return g.CUDA.ContextStep(g.context) }

// Do runs calls on a thread where the context is current. If Adopted is set, the thread is in
// relaxed capture mode.
func (g *GPU) Do(calls func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := g.CUDA.SetCurrent(g.context); err != nil {
		return err
	}

	if g.Adopted.Load() {
		previousMode, err := g.CUDA.ThreadExchangeCaptureMode(cuda.CaptureRelaxed)
		if err != nil {
			return err
		}

		defer func() { _, _ = g.CUDA.ThreadExchangeCaptureMode(previousMode) }()
	}

	return calls()
}

// Get runs call in GPU.Do and returns the result.
func Get[T any](g *GPU, call func() (T, error)) (value T, err error) {
	err = g.Do(func() error {
		value, err = call()
		return err
	})
	return value, err
}

// With runs calls with a driver for the GPU's context. Each call of the driver can run on a
// different thread, which is cheaper than Do. If Adopted is set, With uses Do.
func (g *GPU) With(calls func(gpu *cuda.Driver) error) error {
	if !g.Adopted.Load() {
		return calls(g.anyThreadDriver)
	}

	return g.Do(func() error { return calls(g.CUDA) })
}

// Query runs a query with With. CUDA refuses a query while another library is capturing in global
// mode, and invalidates that library's capture. In that case, Query sets Adopted and repeats the
// query, now in relaxed mode, so that later queries do no harm.
func (g *GPU) Query(query func(gpu *cuda.Driver) error) error {
	err := g.With(query)
	if !errors.Is(err, cuda.ErrCaptureUnsupported) {
		return err
	}

	g.Adopted.Store(true)
	return g.With(query)
}

// IsMapped reports whether CUDA has mapped memory at an address.
func (g *GPU) IsMapped(address uintptr) bool {
	err := g.Do(func() error { return g.CUDA.CheckAddress(address) })
	return err == nil
}

// Map maps an allocation at new addresses, for this GPU only, and returns the first address. The
// context must be current for calls of Map, MapAt and Unmap.
func (g *GPU) Map(handle cuda.Handle, bytes int64) (uintptr, error) {
	address, err := g.CUDA.AddressReserve(bytes, g.Granularity)
	if err != nil {
		return 0, err
	}

	if err := g.MapAt(address, handle, bytes); err != nil {
		freeErr := g.CUDA.AddressFree(address, bytes)
		return 0, errors.Join(err, freeErr)
	}

	return address, nil
}

// MapAt maps an allocation at reserved addresses, for this GPU only.
func (g *GPU) MapAt(address uintptr, handle cuda.Handle, bytes int64) error {
	if err := g.CUDA.Map(address, bytes, handle); err != nil {
		return err
	}

	if err := g.CUDA.SetAccess(address, bytes, g.Device); err != nil {
		unmapErr := g.CUDA.Unmap(address, bytes)
		return errors.Join(err, unmapErr)
	}

	return nil
}

// Unmap undoes the Map that returned the address: it unmaps the allocation and frees the addresses.
func (g *GPU) Unmap(address uintptr, bytes int64) error {
	unmapErr := g.CUDA.Unmap(address, bytes)
	freeErr := g.CUDA.AddressFree(address, bytes)
	return errors.Join(unmapErr, freeErr)
}

// MapImported maps the allocation that importHandle returns, and returns its address. This is the
// given address, which must be reserved, or a new one if that is 0.
func (g *GPU) MapImported(
	address uintptr, bytes int64, importHandle func() (cuda.Handle, error),
) (uintptr, error) {
	return Get(g, func() (uintptr, error) {
		handle, err := importHandle()
		if err != nil {
			return 0, err
		}
		defer g.Release(handle) // the mapping keeps the memory
		if address == 0 {
			return g.Map(handle, bytes)
		}

		err = g.MapAt(address, handle, bytes)
		return address, err
	})
}

// Release releases an allocation handle. The memory stays allocated while it is mapped.
func (g *GPU) Release(handle cuda.Handle) { _ = g.CUDA.Release(handle) }
