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

// Arena reserves two address ranges of the same size. Each segment is mapped in both, at the same
// offset. Only the first range is registered with NCCL. Calls that are faster with NCCL's kernels
// for unregistered memory pass addresses in the second range.
type Arena struct {
	memory       *Memory
	bytes        int64   // size of each range
	base         uintptr // start of the first range
	secondBase   uintptr // start of the second range
	isClosed     bool    // guarded by Memory.mu
	keepsContext bool    // holds the CUDA context until free has run; guarded by Memory.mu
	useCount     UseCount
}

// maxBytesIfStuck limits an arena while a kernel is stuck, because addresses are then never freed.
const maxBytesIfStuck = 64 << 30

// NewArena reserves the addresses of an arena. The error wraps syscall.ENOMEM if a smaller arena
// may succeed.
func (m *Memory) NewArena(bytes int64) (driver.Arena, error) {
	granularity := m.gpu.Granularity
	if bytes <= 0 || bytes%granularity != 0 {
		return nil, fmt.Errorf("reserving an arena of %d bytes: the size must be a positive multiple "+
			"of %d", bytes, granularity)
	}

	if gpu.Stuck.Load() && bytes > maxBytesIfStuck {
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

// reserve reserves both ranges. The CUDA context must be current.
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

// Map allocates a segment and maps it at the given offset, or at a random offset if
// driver.Config.Scatter is set.
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

// Keep lets the arena outlive its device. The size stays, because CUDA cannot free a part of it.
func (a *Arena) Keep(_ int64) error {
	a.memory.mu.Lock()
	defer a.memory.mu.Unlock()
	a.keepContext()
	return nil
}

// keepContext sets keepsContext. The caller must hold Memory.mu.
func (a *Arena) keepContext() {
	if !a.keepsContext {
		a.keepsContext = true
		a.memory.gpu.Hold()
	}
}

// Close frees the addresses once no CUDA graph uses a segment in the arena.
func (a *Arena) Close() error {
	_, reclaimErr := a.memory.gpu.Reclaim() // frees what earlier calls could not free yet
	closeErr := a.close()
	return errors.Join(reclaimErr, closeErr)
}

func (a *Arena) close() error {
	wasOpen := a.beginClose()
	if !wasOpen {
		return nil
	}

	var noContainer *UseCount
	isDeferred := a.memory.UseCounts.DeferUntilUnused(&a.useCount, noContainer, a.free)
	if isDeferred {
		return nil
	}

	return a.free()
}

// beginClose removes the arena from its Memory. It returns false if the arena is already closed.
func (a *Arena) beginClose() (wasOpen bool) {
	m := a.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.isClosed {
		return false
	}

	a.isClosed = true
	m.arenas = slices.DeleteFunc(m.arenas, func(other *Arena) bool { return other == a })
	if m.UseCounts.hasUsers(&a.useCount) { // the users may outlive the device
		a.keepContext()
	}

	return true
}

// free frees the addresses once no GPU work can use them, and then releases the context.
func (a *Arena) free() error {
	m := a.memory
	return m.gpu.FreeWhenIdle(func() error {
		err := m.gpu.Do(a.unreserve)
		m.mu.Lock()
		defer m.mu.Unlock()
		if a.keepsContext {
			dropErr := m.gpu.Drop()
			err = errors.Join(err, dropErr)
		}

		return err
	})
}

// unreserve frees both ranges. The CUDA context must be current.
func (a *Arena) unreserve() error {
	g := a.memory.gpu
	firstErr := g.CUDA.AddressFree(a.base, a.bytes)
	secondErr := g.CUDA.AddressFree(a.secondBase, a.bytes)
	return errors.Join(firstErr, secondErr)
}
