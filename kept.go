package symmem

import (
	"errors"
	"fmt"

	"symmem/internal/alloc"
)

// giveBack unmaps what nobody uses of a pool that is being closed, and gives its addresses back, if
// no buffer is live. p.mu is held, and all segments are deregistered.
func (p *Pool) giveBack() error {
	live := p.liveBuffers()
	var errs []error
	for _, s := range p.segments {
		switch {
		case s == nil:
		case live[s] > 0:
			errs = append(errs, s.memory.Keep())
		default:
			errs = append(errs, p.unmap(s))
		}
	}
	if len(live) == 0 {
		return errors.Join(append(errs, p.arena.Close())...)
	}
	p.kept = live
	return errors.Join(append(errs, p.arena.Keep(p.next))...)
}

// liveBuffers counts the live buffers of each segment that has some. p.mu is held.
func (p *Pool) liveBuffers() map[*segment]int {
	live := map[*segment]int{}
	for _, s := range p.segments {
		if s == nil {
			continue
		}
		for b := range p.core.Blocks(s.key.Ordinal) {
			if b.State == alloc.Live {
				live[s]++
			}
		}
	}
	return live
}

// freeKept frees a buffer of a pool that is closed, and gives back the lock. The last buffer of a
// segment takes its memory along, the last of all the addresses.
func (p *Pool) freeKept(b Buffer) error {
	if len(p.kept) == 0 {
		return p.refuse()
	}
	defer p.mu.Unlock()
	block, _, err := p.core.FreeHandle(b.memory.handle)
	if err != nil {
		return fmt.Errorf("freeing a buffer: %w", err)
	}
	s := p.segments[block.Segment]
	if p.kept[s]--; p.kept[s] > 0 {
		return nil
	}
	delete(p.kept, s)
	err = p.unmap(s)
	if len(p.kept) == 0 {
		err = errors.Join(err, p.arena.Close())
	}
	return err
}
