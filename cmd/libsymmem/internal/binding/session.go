package binding

import (
	"fmt"
	"sync/atomic"

	"symmem"
)

// session holds the state that the parts of a Library share: the open rank, and state that outlives
// it.
type session struct {
	words *Words
	// warn prints a warning that no call can return.
	warn func(text string)
	warnings
	interrupts

	rank atomic.Pointer[rank] // nil while closed
	kept keptMemory
	// handles holds the last handle. It is never reset, because a later rank must not reuse a handle.
	handles atomic.Uint64
}

// current returns the open rank.
func (s *session) current() (*rank, error) {
	if r := s.rank.Load(); r != nil {
		return r, nil
	}
	return nil, ErrNotOpen
}

// errUnknown returns the error for a handle without an object: ErrClosed if the handle was valid
// earlier, otherwise ErrInvalid.
func (s *session) errUnknown(kind string, handle uint64) error {
	if handle == 0 || handle > s.handles.Load() {
		return fmt.Errorf("%s %d: no such handle: %w", kind, handle, symmem.ErrInvalid)
	}
	return fmt.Errorf("%s %d: %w", kind, handle, symmem.ErrClosed)
}

// group returns the open rank and one of its groups.
func (s *session) group(handle uint64) (*rank, *group, error) {
	r, err := s.current()
	if err != nil {
		return nil, nil, err
	}
	if g := r.groups.find(handle); g != nil {
		return r, g, nil
	}
	return nil, nil, s.errUnknown("group", handle)
}

// pool returns the open rank and one of its pools.
func (s *session) pool(number int) (*rank, *pool, error) {
	r, err := s.current()
	if err != nil {
		return nil, nil, err
	}
	p, err := r.pools.find(number)
	return r, p, err
}

// flushedPool returns a pool after freeing its retired buffers.
func (s *session) flushedPool(number int) (*pool, error) {
	_, p, err := s.pool(number)
	if err != nil {
		return nil, err
	}
	return p, p.flush()
}
