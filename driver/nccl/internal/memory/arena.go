package memory

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/cuda"
)

// An arena reserves addresses, at which segments of memory are mapped later. For example, an arena
// of 1 GiB consists of two ranges of 1 GiB. A segment at offset 4 MiB is mapped in both ranges, at
// this offset, so it has two addresses. At the first address, it can be registered with NCCL. NCCL
// then uses its kernels for registered memory, also where they are slower. A call that passes the
// second address to NCCL uses its other kernels.

// Arena is a reservation of addresses for segments.
type Arena struct {
	memory        *Memory
	bytes         int64   // size of each range
	base          uintptr // start of the first range
	secondBase    uintptr // start of the second range
	isClosed      bool    // guarded by Memory.mu
	hasContextRef bool    // keepContext has been called; guarded by Memory.mu
	useCount      UseCount
}

// stuckArenaBytes limits the size of an arena in a process with a kernel that never exits, because
// such a process frees no addresses.
const stuckArenaBytes = 64 << 30

// NewArena reserves the addresses of an arena. An error that is syscall.ENOMEM means that a smaller
// arena might be possible.
func (m *Memory) NewArena(bytes int64) (driver.Arena, error) {
	granularity := m.gpu.Granularity
	isValid := bytes > 0 && bytes%granularity == 0
	if !isValid {
		return nil, fmt.Errorf("reserving an arena of %d bytes: the size must be a positive multiple "+
			"of %d", bytes, granularity)
	}

	if gpu.Stuck.Load() && bytes > stuckArenaBytes {
		return nil, fmt.Errorf("reserving an arena of %d bytes while a kernel is stuck: %w",
			bytes, syscall.ENOMEM)
	}

	a := &Arena{memory: m, bytes: bytes}
	err := m.gpu.Do(a.reserve)
	if errors.Is(err, cuda.ErrOutOfMemory) {
		err = errors.Join(err, syscall.ENOMEM)
	}

	if err != nil {
		return nil, fmt.Errorf("reserving an arena of %d bytes: %w", bytes, err)
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	m.arenas = append(m.arenas, a)
	return a, nil
}

// reserve reserves both ranges of addresses. The CUDA context must be current.
func (a *Arena) reserve() (err error) {
	g := a.memory.gpu
	if a.base, err = g.CUDA.AddressReserve(a.bytes, g.Granularity); err != nil {
		return err
	}

	if a.secondBase, err = g.CUDA.AddressReserve(a.bytes, g.Granularity); err != nil {
		freeErr := g.CUDA.AddressFree(a.base, a.bytes)
		return errors.Join(err, freeErr)
	}

	return nil
}

// Address returns the arena's first address.
func (a *Arena) Address() uintptr { return a.base }

// Map allocates a segment and maps it at the given offset. If tests have set Config.Scatter, it
// maps the segment at a random offset instead.
func (a *Arena) Map(offset, bytes int64) (driver.Segment, error) {
	m := a.memory
	granularity := m.gpu.Granularity
	isMultiple := bytes%granularity == 0 && offset%granularity == 0
	isInArena := bytes > 0 && offset >= 0 && offset <= a.bytes-bytes
	if !isMultiple || !isInArena {
		return nil, fmt.Errorf("mapping %d bytes at offset %d: both must be multiples of %d, and the "+
			"range must lie in the arena of %d bytes", bytes, offset, granularity, a.bytes)
	}

	m.gpu.ReclaimBeforeMap()
	chosenOffset, err := m.scatter.Draw(a.base, a.bytes, offset, bytes)
	if err != nil {
		return nil, &driver.OutOfMemoryError{Requested: bytes, Cause: err}
	}

	s := &Segment{arena: a, offset: chosenOffset, bytes: bytes}
	if err := m.gpu.Do(s.allocateAndMap); err != nil {
		return nil, fmt.Errorf("mapping %d bytes at offset %d: %w", bytes, offset, err)
	}

	m.add(s)
	return s, nil
}

// Keep prepares for closing the device before the arena. The argument is the number of bytes at the
// start of the arena that the caller needs. Keep ignores it and keeps all addresses, because CUDA
// can only free a reservation as a whole.
func (a *Arena) Keep(int64) error {
	a.memory.mu.Lock()
	defer a.memory.mu.Unlock()
	a.keepContext()
	return nil
}

// keepContext keeps the CUDA context until the addresses have been freed. The caller must hold
// Memory.mu.
func (a *Arena) keepContext() {
	if !a.hasContextRef {
		a.hasContextRef = true
		a.memory.gpu.Hold()
	}
}

// Close frees the addresses. If graphs of other libraries use segments in the arena, this happens
// after they have been destroyed.
func (a *Arena) Close() error {
	// Reclaim frees memory that earlier calls could not free yet.
	_, reclaimErr := a.memory.gpu.Reclaim()
	closeErr := a.close()
	return errors.Join(reclaimErr, closeErr)
}

// close is Close without Reclaim.
func (a *Arena) close() error {
	isFirstClose := a.markClosed()
	if !isFirstClose {
		return nil
	}

	if a.memory.UseCounts.DeferUntilUnused(&a.useCount, nil, a.free) {
		return nil
	}

	return a.free()
}

// markClosed marks the arena as closed, and returns true if it was open.
func (a *Arena) markClosed() bool {
	m := a.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.isClosed {
		return false
	}

	a.isClosed = true
	m.arenas = slices.DeleteFunc(m.arenas, func(other *Arena) bool { return other == a })
	if m.UseCounts.hasUsers(&a.useCount) { // the device may be closed before the users end
		a.keepContext()
	}

	return true
}

// free frees the addresses once no work of the GPU can use them, and undoes keepContext.
func (a *Arena) free() error {
	m := a.memory
	return m.gpu.FreeWhenIdle(func() error {
		err := m.gpu.Do(a.freeRanges)
		m.mu.Lock()
		defer m.mu.Unlock()
		if a.hasContextRef {
			dropErr := m.gpu.Drop()
			err = errors.Join(err, dropErr)
		}

		return err
	})
}

// freeRanges frees both ranges of addresses. The CUDA context must be current.
func (a *Arena) freeRanges() error {
	g := a.memory.gpu
	firstErr := g.CUDA.AddressFree(a.base, a.bytes)
	secondErr := g.CUDA.AddressFree(a.secondBase, a.bytes)
	return errors.Join(firstErr, secondErr)
}
