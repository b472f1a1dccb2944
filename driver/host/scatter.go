package host

import (
	"fmt"
	"math/rand/v2"
	"sync"

	"symmem/driver"
	"symmem/internal/sys"
)

// scatter draws addresses for segments as a driver would: anywhere, differently on every rank,
// never twice at once. With no seed segments lie where the caller says.
type scatter struct {
	mu    sync.Mutex
	draws *rand.Rand       // guarded by mu; nil without a seed
	taken map[uintptr]bool // guarded by mu: granules, by address
}

func newScatter(cfg driver.Config) *scatter {
	if cfg.Scatter == 0 {
		return &scatter{}
	}
	seed := rand.NewPCG(cfg.Scatter, uint64(cfg.Rank))
	return &scatter{draws: rand.New(seed), taken: map[uintptr]bool{}}
}

// scatterTries bounds the search; an arena that is nearly full is no place to scatter in.
const scatterTries = 1000

// draw returns the offset in the arena where a segment goes.
func (s *scatter) draw(space *sys.Mapping, offset, bytes int64) (int64, error) {
	if s.draws == nil {
		return offset, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	places := (space.Bytes()-bytes)/granularity + 1
	for range scatterTries {
		at := s.draws.Int64N(places) * granularity
		if s.take(space.Address()+uintptr(at), bytes) {
			return at, nil
		}
	}
	return 0, fmt.Errorf("scattering a segment of %d bytes: %w", bytes, driver.ErrOutOfMemory)
}

// take claims the granules of a range, or none of them. They are not given back: a driver does
// not hand out an address again soon either.
func (s *scatter) take(base uintptr, bytes int64) bool {
	for b := int64(0); b < bytes; b += granularity {
		if s.taken[base+uintptr(b)] {
			return false
		}
	}
	for b := int64(0); b < bytes; b += granularity {
		s.taken[base+uintptr(b)] = true
	}
	return true
}
