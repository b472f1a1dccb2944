package bench

import (
	"context"
	"errors"
	"fmt"

	"symmem"
)

// ScopeSizes say at which numbers of segments and groups a scope is measured.
type ScopeSizes struct {
	Segments, Groups []int
	// MaxWindows leaves out combinations of more windows, which take long to make.
	MaxWindows int
}

// errNotRegistered is what the snapshot walk must never find here.
var errNotRegistered = errors.New("a segment is not registered")

// Scope measures the beginning and end of a scope with nothing new, over all segments and groups
// given. The baseline is a snapshot walk, as SGLang had before #21392: copy the list of all
// segments with their blocks, and look each up in the map of those that are registered.
func Scope(ctx context.Context, p Plan, sizes ScopeSizes) (*Report, error) {
	report := NewReport("scope")
	for _, groups := range sizes.Groups {
		err := onLocalRanks(ctx, 1, p.options(), func(rt *symmem.Runtime) error {
			g, err := newGrown(ctx, rt, groups)
			if err != nil {
				return err
			}
			for _, segments := range sizes.Segments {
				if segments*groups > sizes.MaxWindows {
					continue
				}
				if err := scopeOne(ctx, p, g, segments, report); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return report, fmt.Errorf("measuring scopes of %d groups: %w", groups, err)
		}
	}
	return report, nil
}

func scopeOne(ctx context.Context, p Plan, g *grown, segments int, report *Report) error {
	if err := g.grow(ctx, segments); err != nil {
		return err
	}
	return report.Add(p.Measure(Case{
		Name: "scope", Bar: 50,
		Params: map[string]any{"segments": segments, "groups": len(g.groups)},
		Ours:   Variant{Run: scopes(ctx, g)},
		Baselines: []Variant{
			{Name: "snapshot walk", Run: snapshots(g)},
		},
	}))
}

// scopes begins and ends scopes of the groups in turns.
func scopes(ctx context.Context, g *grown) func(n int) error {
	return func(n int) error {
		at := 0
		for range n {
			if at++; at >= len(g.groups) {
				at = 0
			}
			s := g.pool.Begin(g.groups[at])
			if err := s.End(ctx); err != nil {
				return err
			}
		}
		return nil
	}
}

// record is a segment as a snapshot has it.
type record struct {
	address uintptr
	bytes   int64
	blocks  []blockRecord
}

type blockRecord struct {
	address uintptr
	bytes   int64
}

// snapshots walks snapshots for the groups in turns.
func snapshots(g *grown) func(n int) error {
	source := records(g)
	registered := make([]map[uintptr]bool, len(g.groups))
	for i := range registered {
		registered[i] = map[uintptr]bool{}
		for _, r := range source {
			registered[i][r.address] = true
		}
	}
	return func(n int) error {
		for i := range n {
			if err := walk(snapshot(source), registered[i%len(registered)]); err != nil {
				return err
			}
		}
		return nil
	}
}

func records(g *grown) []record {
	var source []record
	for _, s := range g.pool.Segments() {
		source = append(source, record{address: s.Address, bytes: s.Bytes})
	}
	for _, b := range g.blocks {
		r := &source[b.Segment()]
		r.blocks = append(r.blocks, blockRecord{b.Address(), b.Size()})
	}
	return source
}

// snapshot copies segments and blocks.
func snapshot(source []record) []record {
	copied := make([]record, len(source))
	for i, r := range source {
		r.blocks = append([]blockRecord(nil), r.blocks...)
		copied[i] = r
	}
	return copied
}

func walk(segments []record, registered map[uintptr]bool) error {
	for _, r := range segments {
		if !registered[r.address] {
			return errNotRegistered
		}
	}
	return nil
}
