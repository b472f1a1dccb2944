package bench

import (
	"context"
	"errors"
	"fmt"

	"symmem"
)

// errWrongAnswer means that a query was answered wrongly.
var errWrongAnswer = errors.New("a query was answered wrongly")

// Query measures Runtime.IsSymmetric for ranges inside windows (hits) and outside (misses) at each
// number of segments, against a walk over the list of windows.
func Query(ctx context.Context, p Plan, segments []int) (*Report, error) {
	report := NewReport("query")
	err := onLocalRanks(ctx, 1, p.options(), func(rt *symmem.Runtime) error {
		g, err := newGrown(ctx, rt, 1)
		if err != nil {
			return err
		}
		for _, n := range segments {
			if err := g.grow(ctx, n); err != nil {
				return err
			}
			for _, hit := range []bool{true, false} {
				if err := queryOne(p, g, hit, report); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return report, fmt.Errorf("measuring queries: %w", err)
	}
	return report, nil
}

// queryBytes is the length of the ranges that are asked for.
const queryBytes = 64 << 10

func queryOne(p Plan, g *grown, hit bool, report *Report) error {
	asked := questions(g, hit)
	windows := records(g)
	return report.Add(p.Measure(Case{
		Name: "query", Bar: 50,
		Params: map[string]any{"segments": len(windows), "answer": hit},
		Ours: Variant{Run: queries(asked, hit, func(a uintptr) bool {
			return g.rt.IsSymmetric(a, queryBytes, g.rt.World())
		})},
		Baselines: []Variant{{
			Name: "linear walk",
			Run:  queries(asked, hit, func(a uintptr) bool { return inside(windows, a) }),
		}},
	}))
}

// questions are addresses all over the windows, or as many outside of them: before the first,
// behind the last, and so close to an end that the range runs over it.
func questions(g *grown, hit bool) []uintptr {
	const many = 1 << 10
	var addresses []uintptr
	last := g.blocks[len(g.blocks)-1]
	for i := range many {
		b := g.blocks[i*7919%len(g.blocks)]
		switch {
		case hit:
			addresses = append(addresses, b.Address()+uintptr(i%15)*queryBytes)
		case i%3 == 0:
			addresses = append(addresses, g.blocks[0].Address()-queryBytes)
		case i%3 == 1:
			addresses = append(addresses, last.Address()+uintptr(last.Size())-queryBytes/2)
		default:
			addresses = append(addresses, last.Address()+uintptr(last.Size())+uintptr(i))
		}
	}
	return addresses
}

func queries(asked []uintptr, want bool, answer func(uintptr) bool) func(n int) error {
	return func(n int) error {
		for i := range n {
			if answer(asked[i%len(asked)]) != want {
				return errWrongAnswer
			}
		}
		return nil
	}
}

// inside walks the windows.
func inside(windows []record, a uintptr) bool {
	for i := range windows {
		w := &windows[i]
		if a >= w.address && a+queryBytes <= w.address+uintptr(w.bytes) {
			return true
		}
	}
	return false
}
