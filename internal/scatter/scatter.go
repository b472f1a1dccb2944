// Package scatter draws places for segments as a GPU driver would choose addresses: anywhere,
// differently on every rank, never twice at once. It shows what goes wrong when placement looks at
// addresses; it is part of the backends for that purpose alone.
package scatter

import (
	"fmt"
	"math/rand/v2"
	"sync"
)

// Scatter draws offsets. The zero value, and New with seed 0, leave segments where the caller wants
// them. It is safe for concurrent use.
type Scatter struct {
	granule int64

	mu    sync.Mutex
	draws *rand.Rand       // guarded by mu; nil without a seed
	taken map[uintptr]bool // guarded by mu: granules, by address
}

// New makes the scatter of a rank. Offsets are multiples of granule bytes. Ranks with one seed draw
// different places, and each draws the same in every run.
func New(seed uint64, rank int, granule int64) *Scatter {
	s := &Scatter{granule: granule}
	if seed != 0 {
		s.draws = rand.New(rand.NewPCG(seed, uint64(rank)))
		s.taken = map[uintptr]bool{}
	}
	return s
}

// tries bounds the search; an arena that is nearly full is no place to scatter in.
const tries = 1000

// Draw returns the offset at which a segment of so many bytes goes in an arena of space bytes that
// begins at address base: the given offset without a seed, else one of its own.
func (s *Scatter) Draw(base uintptr, space, offset, bytes int64) (int64, error) {
	if s.draws == nil {
		return offset, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	places := (space-bytes)/s.granule + 1
	for try := 0; try < tries && places > 0; try++ {
		at := s.draws.Int64N(places) * s.granule
		if s.take(base+uintptr(at), bytes) {
			return at, nil
		}
	}
	return 0, fmt.Errorf("no place for a segment of %d bytes in an arena of %d", bytes, space)
}

// take claims the granules of a range, or none of them. They are not given back: a driver does not
// hand out an address again soon either.
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
