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
// Hold and Drop count references to the context. Do not use a GPU after the last Drop.
//
// Most CUDA calls act on the context that is current on the calling thread, but a goroutine can
// move to another thread between calls. Do locks the goroutine to one thread. With makes the
// context current before each call.
type GPU struct {
	cuda.Device
	CUDA        *cuda.Driver // requires a current context
	contextCUDA *cuda.Driver // makes context current before each call, for With
	context     cuda.Context
	// Relaxed is set once another library may capture streams of the GPU. Calls then use CUDA's
	// relaxed capture mode, which keeps these captures valid.
	Relaxed         atomic.Bool
	Timeout         time.Duration // limits each wait for internal work
	InternalStreams InternalStreams
	Words           Pinned[Word] // written or awaited by streams
	Properties

	mu             ranked.Mutex[gpuMu] // guards the following fields
	referenceCount int                 // 0 once the context has been released

	unfinishedWork []*unfinishedItem // work that may still use memory
	deferredFrees  []func() error    // run by Reclaim, in order
	firstFreeEnded chan struct{}     // closed when deferredFrees[0] has run; nil unless it runs
	unreported     error             // joined errors for the next Reclaim
}

// Open retains the primary context until the last Drop.
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

// Borrow retains the primary context, runs calls with it current, and releases it.
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
		Device: device, CUDA: library, contextCUDA: library.InContext(context), context: context,
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

// ContextStep returns a step that makes the context current before a call to another C library.
func (g *GPU) ContextStep() dl.Step { return g.CUDA.ContextStep(g.context) }

// Do runs calls on one thread with the context current, and in relaxed capture mode if Relaxed is
// set.
func (g *GPU) Do(calls func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := g.CUDA.SetCurrent(g.context); err != nil {
		return err
	}

	if g.Relaxed.Load() {
		previousMode, err := g.CUDA.ThreadExchangeCaptureMode(cuda.CaptureRelaxed)
		if err != nil {
			return err
		}

		defer func() { _, _ = g.CUDA.ThreadExchangeCaptureMode(previousMode) }()
	}

	return calls()
}

// Get is GPU.Do for a call that returns a value.
func Get[T any](g *GPU, call func() (T, error)) (value T, err error) {
	err = g.Do(func() (callErr error) {
		value, callErr = call()
		return callErr
	})
	return value, err
}

// With runs calls with a Driver for the context. Unless Relaxed is set, With is cheaper than Do,
// because it does not lock the goroutine to a thread.
func (g *GPU) With(calls func(api *cuda.Driver) error) error {
	if !g.Relaxed.Load() {
		return calls(g.contextCUDA)
	}

	return g.Do(func() error { return calls(g.CUDA) })
}

// Query is With for a CUDA query. While another library captures a stream in global mode, CUDA
// refuses the query and invalidates the capture. Query then sets Relaxed and retries.
func (g *GPU) Query(call func(api *cuda.Driver) error) error {
	err := g.With(call)
	if !errors.Is(err, cuda.ErrCaptureUnsupported) {
		return err
	}

	g.Relaxed.Store(true)
	return g.With(call)
}

// IsMapped reports whether CUDA has mapped memory at an address.
func (g *GPU) IsMapped(address uintptr) bool {
	err := g.Do(func() error { return g.CUDA.CheckAddress(address) })
	return err == nil
}

// Map reserves addresses and maps an allocation at them, for this GPU only. It returns the first
// address. Map, MapAt and Unmap require a current context.
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

// MapImported imports an allocation and maps it at the reserved addresses from address on. If
// address is 0, it reserves addresses. It returns the first address of the mapping.
func (g *GPU) MapImported(
	address uintptr, bytes int64, importHandle func() (cuda.Handle, error),
) (uintptr, error) {
	return Get(g, func() (uintptr, error) {
		handle, err := importHandle()
		if err != nil {
			return 0, err
		}

		defer g.Release(handle) // mapped memory stays allocated
		if address == 0 {
			return g.Map(handle, bytes)
		}

		err = g.MapAt(address, handle, bytes)
		return address, err
	})
}

// Release releases an allocation handle. A failure leaks the handle.
func (g *GPU) Release(handle cuda.Handle) { _ = g.CUDA.Release(handle) }
