package sim

import (
	"fmt"
	"time"

	"symmem/internal/agreement"
	"symmem/internal/registry"
)

// Growth describes a pool that grows scope by scope under several groups.
type Growth struct {
	// Segments is how many there are in the end.
	Segments int
	// Groups is how many groups register each of them.
	Groups int
	// PerScope is how many segments appear between two scope ends.
	PerScope int
}

// GrowthResult is what a pool came to. All of it is the same on every rank that did the same.
type GrowthResult struct {
	// Scopes is the number of scope ends of all groups that had something to register.
	Scopes int
	// Windows is the number of registrations.
	Windows int
	// LargestPending is the longest list that one scope end registered.
	LargestPending int
	// Pending covers all registrations in their order.
	Pending agreement.Pending
	// Elapsed is left to the caller, who has a clock.
	Elapsed time.Duration
}

// growing is a pool in the middle of a growth, with what its scope ends need.
type growing struct {
	registry registry.Registry
	groups   []*registry.Group
	scratch  []registry.Segment
	result   GrowthResult
}

// Grow runs the growth: after each batch of segments every group ends a scope, in the order of
// their keys, and then once more with nothing new, which must find nothing.
func Grow(g Growth) (GrowthResult, error) {
	if g.PerScope < 1 {
		return GrowthResult{}, fmt.Errorf("growing by %d segments a scope: too few", g.PerScope)
	}
	var p growing
	for id := range g.Groups {
		group, err := p.registry.Join(registry.GroupKey(id))
		if err != nil {
			return GrowthResult{}, err
		}
		p.groups = append(p.groups, group)
	}
	for next := 0; next < g.Segments; {
		upTo := min(next+g.PerScope, g.Segments)
		for ; next < upTo; next++ {
			s := registry.Segment{Ordinal: int32(next), Bytes: segmentBytes}
			if err := p.registry.Track(s); err != nil {
				return GrowthResult{}, err
			}
		}
		if err := p.endScopes(); err != nil {
			return GrowthResult{}, err
		}
	}
	return p.result, nil
}

func (p *growing) endScopes() error {
	for id, group := range p.groups {
		if err := p.endScope(group); err != nil {
			return err
		}
		if group.HasPending() {
			return fmt.Errorf("ending a scope of group %d twice: something is new", id)
		}
	}
	return nil
}

func (p *growing) endScope(group *registry.Group) error {
	p.scratch = group.Pending(p.scratch[:0])
	if len(p.scratch) == 0 {
		return nil
	}
	p.result.Scopes++
	p.result.LargestPending = max(p.result.LargestPending, len(p.scratch))
	for _, s := range p.scratch {
		p.result.Windows++
		p.result.Pending = p.result.Pending.Add(s.Ordinal, s.Bytes)
		if err := group.Registered(s, registry.Window(p.result.Windows)); err != nil {
			return err
		}
	}
	return nil
}
