// Package scatter draws random offsets for segments. It simulates a GPU driver that chooses
// arbitrary addresses, which differ between ranks and are never reused. Backends use it to show
// what goes wrong if placement depends on addresses.
package scatter

import (
	"fmt"
	"math/rand/v2"
	"sync"
)

// Scatter draws offsets. It is safe for concurrent use. The zero value and a Scatter with seed 0
// draw nothing: Draw returns the offset that the caller passes.
type Scatter struct {
	granule int64

	mu    sync.Mutex
	draws *rand.Rand       // guarded by mu; nil if the seed is 0
	taken map[uintptr]bool // addresses of granules; guarded by mu
}

// New returns a Scatter for a rank. Offsets are multiples of granule bytes and depend only on
// seed and rank, so each rank draws the same offsets in every run, but different ranks draw
// different ones.
func New(seed uint64, rank int, granule int64) *Scatter {
	s := &Scatter{granule: granule}
	if seed != 0 {
		s.draws = rand.New(rand.NewPCG(seed, uint64(rank)))
		s.taken = map[uintptr]bool{}
	}
	return s
}

// maxTries limits how often Draw tries to find a free range. Draw may therefore fail if the arena
// is nearly full.
const maxTries = 1000

// Draw returns an offset for a new segment in an arena, an address range of space bytes at base.
// If the seed is 0, it returns the given offset.
func (s *Scatter) Draw(base uintptr, space, offset, bytes int64) (int64, error) {
	if s.draws == nil {
		return offset, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	places := (space-bytes)/s.granule + 1
	for try := 0; try < maxTries && places > 0; try++ {
		drawn := s.draws.Int64N(places) * s.granule
		if s.take(base+uintptr(drawn), bytes) {
			return drawn, nil
		}
	}
	return 0, fmt.Errorf("no free range of %d bytes in an arena of %d bytes", bytes, space)
}

// take claims all granules of a range if all of them are free, and reports whether it did. Granules
// are never released, because addresses must not be reused.
func (s *Scatter) take(base uintptr, bytes int64) bool {
	for b := int64(0); b < bytes; b += s.granule {
		if s.taken[base+uintptr(b)] {
			return false
		}
	}
	for b := int64(0); b < bytes; b += s.granule {
		s.taken[base+uintptr(b)] = true
	}
	return true
}
