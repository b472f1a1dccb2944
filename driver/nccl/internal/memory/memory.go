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
	// NCCLMapsCaptured is set if NCCL may map the memory of plain calls on other ranks (UseCount).
	NCCLMapsCaptured bool
	// ReleaseCaptured makes NCCL on other ranks unmap memory that destroyed graphs have used. If
	// isUnmapping is set, this rank then unmaps it too, even if ReleaseCaptured fails.
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
		if contains(a.base, a.bytes, address) {
			return a.secondBase + (address - a.base)
		}
	}

	return address
}

func contains(base uintptr, bytes int64, address uintptr) bool {
	return address >= base && address-base < uintptr(bytes)
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
		if contains(s.Address(), s.bytes, address) {
			return s
		}
	}

	return nil
}

// releaseOnPeers makes NCCL on other ranks unmap an object that has no plain calls. See
// ReleaseCaptured for isUnmapping.
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
		u.mayBeOnPeers = true // so that the next call tries again
	}

	return err
}
