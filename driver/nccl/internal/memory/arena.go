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

// Arena reserves a range of addresses for windows (memory registered with NCCL), and a second range
// for calls that must not use windows.
type Arena struct {
	memory *Memory
	bytes  int64
	// base is the start of the range that callers use. No window is registered in the range at
	// secondBase.
	base, secondBase uintptr
	closed           bool // guarded by Memory.mu
	// Memory.mu guards holdsContext.
	holdsContext bool
	uses         UseCount
}

// Keep lets the arena outlive the device. CUDA can only free a reservation as a whole, so all
// addresses stay reserved.
func (a *Arena) Keep(int64) error {
	a.memory.mu.Lock()
	defer a.memory.mu.Unlock()
	a.keepContext()
	return nil
}

// keepContext requires Memory.mu.
func (a *Arena) keepContext() {
	if !a.holdsContext {
		a.holdsContext = true
		a.memory.gpu.Hold()
	}
}

// stuckArenaBytes limits arenas while a kernel is stuck, because addresses are then never freed.
const stuckArenaBytes = 64 << 30

// NewArena reserves the addresses of an arena.
func (m *Memory) NewArena(bytes int64) (driver.Arena, error) {
	granularity := m.gpu.Granularity
	if bytes <= 0 || bytes%granularity != 0 {
		return nil, fmt.Errorf("reserving an arena of %d bytes: not a multiple of %d",
			bytes, granularity)
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

// Close frees the addresses, unless graphs of other libraries still use segments in the arena.
func (a *Arena) Close() error {
	m := a.memory
	_, reclaimErr := m.gpu.Reclaim()
	return errors.Join(reclaimErr, a.close())
}

func (a *Arena) close() error {
	m := a.memory
	m.mu.Lock()
	if a.closed {
		m.mu.Unlock()
		return nil
	}
	a.closed = true
	m.arenas = slices.DeleteFunc(m.arenas, func(other *Arena) bool { return other == a })
	if m.UseCounts.inUse(&a.uses) {
		a.keepContext()
	}
	m.mu.Unlock()
	if m.UseCounts.DeferUntilUnused(&a.uses, nil, func() { _ = a.release() }) {
		return nil
	}
	return a.release()
}

func (a *Arena) release() error {
	m := a.memory
	return m.gpu.FreeWhenIdle(func() error {
		err := m.gpu.Do(func() error {
			return errors.Join(m.gpu.CUDA.AddressFree(a.base, a.bytes),
				m.gpu.CUDA.AddressFree(a.secondBase, a.bytes))
		})
		m.mu.Lock()
		defer m.mu.Unlock()
		if a.holdsContext {
			err = errors.Join(err, m.gpu.Drop())
		}
		return err
	})
}

// Map allocates a segment and maps it at the given offset. If the device scatters segments, Map
// chooses another offset.
func (a *Arena) Map(offset, bytes int64) (driver.Segment, error) {
	m := a.memory
	g := m.gpu.Granularity
	if bytes <= 0 || bytes%g != 0 || offset < 0 || offset%g != 0 || offset > a.bytes-bytes {
		return nil, fmt.Errorf("mapping %d bytes at %d: not multiples of %d in an arena of %d",
			bytes, offset, g, a.bytes)
	}
	if _, err := m.gpu.Reclaim(); err != nil {
		return nil, fmt.Errorf("mapping %d bytes at %d: %w", bytes, offset, err)
	}
	chosen, err := m.scatter.Draw(a.base, a.bytes, offset, bytes)
	if err != nil {
		return nil, &driver.OutOfMemoryError{Requested: bytes, Cause: err}
	}
	s := &Segment{arena: a, offset: chosen, bytes: bytes}
	if err := m.gpu.Do(s.create); err != nil {
		return nil, fmt.Errorf("mapping %d bytes at %d: %w", bytes, offset, err)
	}
	m.add(s)
	return s, nil
}
