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

// Arena is two reserved ranges of addresses, in which segments are mapped. Each segment is mapped
// in both ranges, at the same offset. Only its addresses in the first range can be registered with
// NCCL.
type Arena struct {
	memory           *Memory
	bytes            int64   // size of each range
	base, secondBase uintptr // starts of the ranges
	isClosed         bool    // guarded by Memory.mu
	hasContextRef    bool    // keepContext has been called; guarded by Memory.mu
	useCount         UseCount
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

// stuckArenaBytes limits the size of an arena in a process with a kernel that never exits, because
// such a process frees no addresses.
const stuckArenaBytes = 64 << 30

// NewArena reserves the addresses of an arena.
func (m *Memory) NewArena(bytes int64) (driver.Arena, error) {
	granularity := m.gpu.Granularity
	if bytes <= 0 || bytes%granularity != 0 {
		return nil, fmt.Errorf("reserving an arena of %d bytes: the size must be a positive multiple "+
			"of %d", bytes, granularity)
	}

	if gpu.Stuck.Load() && bytes > stuckArenaBytes {
		return nil, fmt.Errorf("reserving an arena of %d bytes while a kernel is stuck: %w",
			bytes, syscall.ENOMEM)
	}

	a := &Arena{memory: m, bytes: bytes}
	err := m.gpu.Do(func() (err error) {
		if a.base, err = m.gpu.CUDA.AddressReserve(bytes, granularity); err != nil {
			return err
		}

		if a.secondBase, err = m.gpu.CUDA.AddressReserve(bytes, granularity); err != nil {
			freeErr := m.gpu.CUDA.AddressFree(a.base, bytes)
			return errors.Join(err, freeErr)
		}

		return nil
	})
	if errors.Is(err, cuda.ErrOutOfMemory) {
		err = errors.Join(err, syscall.ENOMEM) // for which callers retry with fewer bytes
	}

	if err != nil {
		return nil, fmt.Errorf("reserving an arena of %d bytes: %w", bytes, err)
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	m.arenas = append(m.arenas, a)
	return a, nil
}

// Address returns the arena's first address.
func (a *Arena) Address() uintptr { return a.base }

// Close frees the addresses. If graphs of other libraries use segments in the arena, this happens
// after they have been destroyed.
func (a *Arena) Close() error {
	m := a.memory
	_, reclaimErr := m.gpu.Reclaim()
	closeErr := a.close()
	return errors.Join(reclaimErr, closeErr)
}

// close is Close without Reclaim.
func (a *Arena) close() error {
	m := a.memory
	m.mu.Lock()
	if a.isClosed {
		m.mu.Unlock()
		return nil
	}

	a.isClosed = true
	m.arenas = slices.DeleteFunc(m.arenas, func(other *Arena) bool { return other == a })
	if m.UseCounts.hasUsers(&a.useCount) { // the device may be closed before the users end
		a.keepContext()
	}

	m.mu.Unlock()
	if m.UseCounts.DeferUntilUnused(&a.useCount, nil, a.free) {
		return nil
	}

	return a.free()
}

// free frees the addresses once no work of the GPU can use them, and undoes keepContext.
func (a *Arena) free() error {
	m := a.memory
	freeRanges := func() error {
		firstErr := m.gpu.CUDA.AddressFree(a.base, a.bytes)
		secondErr := m.gpu.CUDA.AddressFree(a.secondBase, a.bytes)
		return errors.Join(firstErr, secondErr)
	}
	return m.gpu.FreeWhenIdle(func() error {
		err := m.gpu.Do(freeRanges)
		m.mu.Lock()
		defer m.mu.Unlock()
		if a.hasContextRef {
			dropErr := m.gpu.Drop()
			err = errors.Join(err, dropErr)
		}

		return err
	})
}

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
