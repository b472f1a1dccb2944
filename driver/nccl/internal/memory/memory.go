package memory

import (
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/ranked"
	"symmem/internal/scatter"
)

// Memory tracks the arenas and segments of a device.
type Memory struct {
	gpu       *gpu.GPU
	scatter   *scatter.Scatter
	UseCounts UseCounts
	// NCCLMapsCaptured is set if NCCL may map the memory of captured calls on other ranks.
	NCCLMapsCaptured bool
	// ReleaseCaptured makes NCCL unmap the memory of destroyed graphs on other ranks. isUnmapping is
	// set if this rank then unmaps the memory even after an error, so that no later graph may use it.
	ReleaseCaptured func(isUnmapping bool) error

	mu       ranked.Mutex[memoryMu] // guards the following fields
	arenas   []*Arena
	segments map[*Segment]bool
}

// New returns an empty Memory for g. scatter chooses the addresses of segments.
func New(g *gpu.GPU, scatter *scatter.Scatter) *Memory {
	return &Memory{
		gpu: g, scatter: scatter, UseCounts: UseCounts{gpu: g}, segments: map[*Segment]bool{},
	}
}

// SecondAddress returns the address of the memory's second mapping, which is not registered with
// NCCL. Addresses outside all arenas are returned unchanged.
func (m *Memory) SecondAddress(address uintptr) uintptr {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.arenas {
		if offset := address - a.base; address >= a.base && offset < uintptr(a.bytes) {
			return a.secondBase + offset
		}
	}

	return address
}

// Owns reports whether a segment belongs to m.
func (m *Memory) Owns(s *Segment) bool { return s.arena.memory == m }

func (m *Memory) add(s *Segment) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.segments[s] = true
}

func (m *Memory) remove(s *Segment) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.segments, s)
}

// SegmentAt returns the segment that contains an address, or nil.
func (m *Memory) SegmentAt(address uintptr) *Segment {
	m.mu.Lock()
	defer m.mu.Unlock()
	for s := range m.segments {
		if address-s.Address() < uintptr(s.bytes) {
			return s
		}
	}

	return nil
}

// releaseOnPeers makes NCCL unmap an object without plain calls on other ranks. See ReleaseCaptured
// for isUnmapping.
func (m *Memory) releaseOnPeers(u *UseCount, isUnmapping bool) error {
	if !m.NCCLMapsCaptured {
		return nil
	}

	mustRelease := m.UseCounts.beginRelease(u)
	if !mustRelease {
		return nil
	}

	err := m.ReleaseCaptured(isUnmapping)
	if err != nil {
		m.UseCounts.mu.Lock()
		defer m.UseCounts.mu.Unlock()
		u.mayBeOnPeers = true
	}

	return err
}
