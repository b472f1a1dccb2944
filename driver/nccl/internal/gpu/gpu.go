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

// GPU is a device with its primary context, the CUDA state that all libraries of the process share.
// The context is reference-counted (Hold and Drop). Do not use a GPU after the last Drop.
//
// Most CUDA calls act on the context that is current on the calling thread, but goroutines change
// threads. GPU.Do therefore locks the goroutine to a thread that has the context, whereas GPU.With
// sets the context before each CUDA call.
type GPU struct {
	cuda.Device
	CUDA            *cuda.Driver // acts on the current context, as in Do
	anyThreadDriver *cuda.Driver // sets the context before each call
	context         cuda.Context
	// Adopted is set once another library is known to use streams of the GPU. The library may be
	// capturing them into graphs. CUDA's relaxed mode keeps other calls from invalidating a capture.
	Adopted         atomic.Bool
	Timeout         time.Duration // limit for waits for internal work
	InternalStreams InternalStreams
	Words           Pinned[Word] // host memory that the GPU can access
	Properties

	mu             ranked.Mutex[gpuMu] // guards the following fields
	referenceCount int                 // 0 once the context has been released

	unfinishedWork []*unfinishedItem // work that may still use memory
	deferredFrees  []func() error    // run in order by Reclaim after all unfinished work
	reclaiming     chan struct{}     // closed after deferredFrees[0] has run; nil if none is running
	unreported     error             // joined errors for the next Reclaim
}

// Open retains the primary context until Drop, with timeout as GPU.Timeout.
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

// Borrow runs calls as Do would, and retains the primary context only meanwhile.
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

// Hold adds a reference to the context. It has no effect after the last Drop.
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

// Do runs calls on one thread where the context is current, in relaxed capture mode if Adopted is
// set.
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

		// An error here would hide the result of calls.
		defer func() { _, _ = g.CUDA.ThreadExchangeCaptureMode(previousMode) }()
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

// With is a cheaper Do without a fixed thread: gpu sets the context before each CUDA call. If
// Adopted is set, With uses Do.
func (g *GPU) With(calls func(gpu *cuda.Driver) error) error {
	if !g.Adopted.Load() {
		return calls(g.anyThreadDriver)
	}

	return g.Do(func() error { return calls(g.CUDA) })
}

// Query runs query in With. If another library is capturing a stream in global mode, CUDA refuses
// the query and invalidates the capture. Query then sets Adopted, which protects later captures,
// and retries.
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

// Map maps an allocation at new addresses, for this GPU only, and returns the first address. Map,
// MapAt and Unmap require a current context.
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

// Unmap unmaps an allocation and frees its addresses.
func (g *GPU) Unmap(address uintptr, bytes int64) error {
	unmapErr := g.CUDA.Unmap(address, bytes)
	freeErr := g.CUDA.AddressFree(address, bytes)
	return errors.Join(unmapErr, freeErr)
}

// MapImported maps the allocation that importHandle returns at address, which must be reserved. If
// address is 0, it maps at new addresses, as Map does. It returns the first address.
func (g *GPU) MapImported(
	address uintptr, bytes int64, importHandle func() (cuda.Handle, error),
) (uintptr, error) {
	return Get(g, func() (uintptr, error) {
		handle, err := importHandle()
		if err != nil {
			return 0, err
		}
		defer g.Release(handle)
		if address == 0 {
			return g.Map(handle, bytes)
		}

		err = g.MapAt(address, handle, bytes)
		return address, err
	})
}

// Release releases an allocation handle. The memory stays allocated while it is mapped. A failure
// leaks the handle.
func (g *GPU) Release(handle cuda.Handle) { _ = g.CUDA.Release(handle) }
