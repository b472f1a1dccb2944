// Package scatter draws random offsets for segments, like a GPU driver that chooses arbitrary
// addresses. It shows what goes wrong if placement depends on addresses.
package scatter

import (
	"fmt"
	"math/rand/v2"
	"sync"
)

// Scatter draws offsets. It is safe for concurrent use.
type Scatter struct {
	granule int64

	mu    sync.Mutex
	draws *rand.Rand       // guarded by mu; nil if the seed is 0
	taken map[uintptr]bool // addresses of granules; guarded by mu
}

// New returns a Scatter for a rank. Offsets are multiples of granule bytes and depend only on seed
// and rank.
func New(seed uint64, rank int, granule int64) *Scatter {
	s := &Scatter{granule: granule}
	if seed != 0 {
		s.draws = rand.New(rand.NewPCG(seed, uint64(rank)))
		s.taken = map[uintptr]bool{}
	}

	return s
}

// maxTries limits how often Draw tries to find a free range.
const maxTries = 1000

// Draw returns an offset for a new segment in a range of space bytes at base, or offset if the seed
// is 0.
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

// take claims a range if all of it is free. Granules are never released, because addresses must not
// be reused.
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
