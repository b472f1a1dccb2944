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
	hasContextRef    bool    // whether keepContext has been called; guarded by Memory.mu
	useCount         UseCount
}

// Keep prepares for closing the device before the arena. It releases no addresses, because CUDA
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

// stuckArenaBytes limits the size of an arena in a process with a kernel that never exits, where
// addresses are never freed.
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
			return errors.Join(err, m.gpu.CUDA.AddressFree(a.base, bytes))
		}
		return nil
	})
	if errors.Is(err, cuda.ErrOutOfMemory) {
		err = errors.Join(err, syscall.ENOMEM) // callers retry with fewer bytes
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

// Close frees the addresses once no graph of another library uses segments in the arena.
func (a *Arena) Close() error {
	m := a.memory
	_, reclaimErr := m.gpu.Reclaim()
	return errors.Join(reclaimErr, a.close())
}

func (a *Arena) close() error {
	m := a.memory
	m.mu.Lock()
	if a.isClosed {
		m.mu.Unlock()
		return nil
	}
	a.isClosed = true
	m.arenas = slices.DeleteFunc(m.arenas, func(other *Arena) bool { return other == a })
	if m.UseCounts.hasUsers(&a.useCount) {
		a.keepContext()
	}
	m.mu.Unlock()
	if m.UseCounts.DeferUntilUnused(&a.useCount, nil, a.free) {
		return nil
	}
	return a.free()
}

func (a *Arena) free() error {
	m := a.memory
	return m.gpu.FreeWhenIdle(func() error {
		err := m.gpu.Do(func() error {
			return errors.Join(m.gpu.CUDA.AddressFree(a.base, a.bytes),
				m.gpu.CUDA.AddressFree(a.secondBase, a.bytes))
		})
		m.mu.Lock()
		defer m.mu.Unlock()
		if a.hasContextRef {
			err = errors.Join(err, m.gpu.Drop())
		}
		return err
	})
}

// Map allocates a segment and maps it at the given offset or, if tests have set Config.Scatter, at
// a random one.
func (a *Arena) Map(offset, bytes int64) (driver.Segment, error) {
	m := a.memory
	granularity := m.gpu.Granularity
	if bytes <= 0 || bytes%granularity != 0 || offset < 0 || offset%granularity != 0 ||
		offset > a.bytes-bytes {
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
