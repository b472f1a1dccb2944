package memory

import (
	"symmem/driver/nccl/internal/gpu"
	"symmem/internal/ranked"
	"symmem/internal/scatter"
)

// Memory are the arenas and segments of a device.
type Memory struct {
	gpu       *gpu.GPU
	scatter   *scatter.Scatter
	UseCounts UseCounts

	mu       ranked.Mutex[memoryMu]
	arenas   []*Arena          // open ones; guarded by mu
	segments map[*Segment]bool // mapped ones; guarded by mu
}

// New is the memory of a GPU, which has none yet. Segments lie where scatter draws them.
func New(g *gpu.GPU, scatter *scatter.Scatter) *Memory {
	return &Memory{
		gpu: g, scatter: scatter, UseCounts: UseCounts{gpu: g}, segments: map[*Segment]bool{},
	}
}

// AliasOf returns the address of the same memory that is in no window. Memory that is not of an
// arena has only one.
func (m *Memory) AliasOf(address uintptr) uintptr {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.arenas {
		if offset := address - a.base; address >= a.base && offset < uintptr(a.bytes) {
			return a.alias + offset
		}
	}
	return address
}

// Own reports whether a segment is of this memory.
func (m *Memory) Own(s *Segment) bool { return s.arena.memory == m }

// list lets SegmentAt find a segment.
func (m *Memory) list(s *Segment) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.segments[s] = true
}

// unlist takes a segment off the list.
func (m *Memory) unlist(s *Segment) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.segments, s)
}

// SegmentAt finds the segment that an address lies in, or nil.
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
