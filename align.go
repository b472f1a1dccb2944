package symmem

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"symmem/driver"
	"symmem/internal/agreement"
	"symmem/internal/alloc"
)

// A fault leaves ranks at different points of their programs: one has queued a call that another
// has never made. So a rank that sees the fault of a group holds its pools suspect from then on,
// and where the ranks of any group next meet on such a pool they realign it:
// docs/design/faults.md.

// aligner realigns the pools of its group. It holds nothing but the group.
type aligner struct{ *Group }

// suspectPool is a pool as an aligner sees it. It holds nothing but the pool.
type suspectPool struct{ *Pool }

// suspicion is what a rank knows of whether a pool places as those of other ranks do.
type suspicion struct {
	// raised reports whether there was a fault since which not all ranks of the domain have realigned
	// the pool.
	raised bool
	// faults are groups whose faults have raised the suspicion since.
	faults map[*Group]bool
	// aligned are world ranks that have realigned the pool together with this one.
	aligned []int
	// before lists the blocks that were live when the suspicion was raised. This rank made them while
	// it had seen no fault, so they lie where they do on every other rank that made them then.
	before []alloc.View
	// rebuilds counts how often the pool was realigned: what was reserved before is reserved no more.
	rebuilds int
	// guests are groups with ranks outside of the domain that have used buffers of the pool.
	guests map[*Group]bool
}

// of reports whether the pool may differ between ranks of a group.
func (d *suspicion) of(g *Group) bool {
	return d.raised && slices.ContainsFunc(g.ranks, func(r int) bool {
		return r != g.rt.rank && !slices.Contains(d.aligned, r)
	})
}

// raise notes that the pool may differ from that of any other rank, because of the fault of a group
// or, where that is nil, because another rank says so. What all groups do next with it begins with
// a registration.
func (p suspectPool) raise(because *Group) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if because != nil {
		if because.fault.Load() == resolved {
			return
		}
		if p.suspicion.faults == nil {
			p.suspicion.faults = map[*Group]bool{}
		}
		p.suspicion.faults[because] = true
	}
	if !p.suspicion.raised {
		p.suspicion.before = p.liveBlocks()
	}
	p.suspicion.raised, p.suspicion.aligned = true, nil
	for _, m := range p.members {
		m.pending.Store(true)
		m.group.revision.Add(1) // plans of memory that is named by its address alone
	}
}

func (p suspectPool) suspect(g *Group) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.suspicion.of(g)
}

// mustAlign reports whether a collective of a group on memory of the pool realigns it first. A
// buffer from before the fault needs nothing: ranks that have not seen the fault yet do not wait for
// those that have.
func (p suspectPool) mustAlign(g *Group, address uintptr, bytes int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.suspicion.of(g) && !p.fromBefore(address, bytes)
}

// fromBefore reports whether memory lies in a block that was live when the suspicion was raised, and
// is live still. p.mu is held.
func (p suspectPool) fromBefore(address uintptr, bytes int64) bool {
	return slices.ContainsFunc(p.suspicion.before, func(b alloc.View) bool {
		s := p.segments[b.Segment]
		if s == nil {
			return false
		}
		at := address - uintptr(s.start) - uintptr(b.Offset)
		if at >= uintptr(b.Size) || bytes > b.Size-int64(at) {
			return false
		}
		_, err := p.core.Live(b.Handle)
		return err == nil
	})
}

// liveBlocks lists the live blocks by place. p.mu is held.
func (p *Pool) liveBlocks() (live []alloc.View) {
	for _, s := range p.segments {
		if s == nil {
			continue
		}
		for b := range p.core.Blocks(s.ordinal) {
			if b.State == alloc.Live {
				live = append(live, b)
			}
		}
	}
	return live
}

func (p suspectPool) rebuilds() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.suspicion.rebuilds
}

// suspectAnywhere reports whether the pool may differ from that of some rank of its domain.
func (p suspectPool) suspectAnywhere() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.suspicion.raised
}

// usedBy notes that a group works with buffers of the pool, which may be nil.
func (p suspectPool) usedBy(g *Group) {
	if p.Pool == nil || p.domain == nil || p.domain.contains(g) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.suspicion.guests == nil {
		p.suspicion.guests = map[*Group]bool{}
	}
	p.suspicion.guests[g] = true
}

// concerns reports whether a fault of a group may leave the pool different.
func (p suspectPool) concerns(g *Group) bool {
	if p.domain == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.domain.contains(g) || p.suspicion.guests[g]
}

// The states of a group's fault on this rank.
const (
	unseen int32 = iota
	// seen: the program was told of the fault. Calls still note what they use: other ranks may have
	// queued them.
	seen
	// resolved: the pools were realigned since. Calls are refused, and note nothing.
	resolved
)

// see notes that the program is told of an error of the group. From the first fault on its pools
// are suspect. It returns the error.
func (g aligner) see(err error) error {
	if err == nil || errors.Is(err, ErrClosed) || g.fault.Load() != unseen {
		return err
	}
	for _, p := range g.rt.allPools() {
		if p := (suspectPool{p}); p.concerns(g.Group) {
			p.raise(g.Group)
		}
	}
	g.fault.CompareAndSwap(unseen, seen)
	return err
}

// resolve ends the suspicion about a group whose fault some rank has seen: it has failed here, too.
func (g aligner) resolve() {
	g.comm.Abort(fmt.Errorf("group %s: %w", g.id, ErrAborted))
	_ = g.see(ErrAborted)
	g.fault.Store(resolved)
}

// meeting is a comparison of histories at a point that all ranks reach in the same place of their
// program.
type meeting struct {
	tag string
	// pools are those that are realigned first where a rank holds one suspect, or for another reason.
	pools  []*Pool
	reason func(*Pool) bool // which holds for the first time only
	// ledgers are compared then.
	ledgers func() []agreement.Ledger
}

// maxRealignments is how often a meeting realigns pools: once, unless other goroutines use them.
const maxRealignments = 3

// The flags of an agreement.
const flagAlign = 1

// meet realigns pools where a rank holds one suspect, and then compares histories. g.mu is held.
func (g aligner) meet(ctx context.Context, m *meeting) error {
	for range maxRealignments {
		if err := g.Err(); err != nil {
			return err
		}
		c := agreement.Config{Mode: agreement.Exact, Tag: m.tag, Ledgers: m.compared()}
		if slices.ContainsFunc(m.pools, func(p *Pool) bool { return m.wants(g.Group, p) }) {
			c.Flags = flagAlign
		}
		outcome, err := g.compare(ctx, g.lane(driver.LaneControl), c)
		if err != nil {
			return g.awaitCause(err)
		}
		switch {
		case outcome.Flags != 0:
		case len(c.Ledgers) == 0 && g.rt.Check() == CheckOff:
			return g.divergence(outcome)
		default:
			return g.noteOutcome(outcome)
		}
		if err := g.align(ctx, m); err != nil {
			return g.awaitCause(err)
		}
		m.reason = nil // it may hold as before, where a graph still has the memory
	}
	if err := g.agree(ctx, m.tag, m.compared()...); err != nil {
		return err // not all ranks have the pool
	}
	return &unalignedError{fmt.Errorf("group %s: realigning pools after a fault: other goroutines "+
		"change them meanwhile", g.id)}
}

func (m *meeting) compared() []agreement.Ledger {
	if m.ledgers == nil {
		return nil
	}
	return m.ledgers()
}

// wants reports whether a pool is to be realigned.
func (m *meeting) wants(g *Group, p *Pool) bool {
	return suspectPool{p}.suspect(g) || m.reason != nil && m.reason(p)
}

// unalignedError is why pools could not be realigned: the same on all ranks, and no fault of the
// group.
type unalignedError struct{ error }

func (e *unalignedError) Unwrap() error { return e.error }

// keepsMemory reports whether a pool holds memory back for what only some ranks had held when it
// was realigned.
func keepsMemory(p *Pool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.core.Keeps()
}

// suspectsPools reports whether this rank holds a pool of the group suspect.
func (g aligner) suspectsPools() bool {
	return slices.ContainsFunc(g.pools(), func(p *Pool) bool {
		return suspectPool{p}.suspect(g.Group)
	})
}

// alignFirst realigns the pools of a group that is being made, if a rank holds one suspect. Where
// that is not possible now, it is for the first call that uses them.
func (g aligner) alignFirst(ctx context.Context, suspect bool) error {
	if !suspect {
		return nil
	}
	err := g.align(ctx, &meeting{pools: g.pools()})
	if errors.As(err, new(*unalignedError)) {
		return nil
	}
	return err
}
