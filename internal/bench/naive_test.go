package bench

import (
	"errors"
	"testing"

	"pgregory.net/rapid"
)

func TestTheNaiveAllocatorNeverOverlapsAndMergesEverything(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const whole = 64 << 10
		a := newNaive(whole)
		var live []extent
		for range rapid.IntRange(1, 80).Draw(rt, "steps") {
			if len(live) > 0 && rapid.Bool().Draw(rt, "free") {
				at := rapid.IntRange(0, len(live)-1).Draw(rt, "victim")
				a.release(live[at])
				live = append(live[:at], live[at+1:]...)
				continue
			}
			e, err := a.alloc(int64(rapid.IntRange(1, 8<<10).Draw(rt, "bytes")))
			if errors.Is(err, errNaiveFull) {
				continue
			}
			for _, other := range live {
				if e.start < other.start+other.size && other.start < e.start+e.size {
					rt.Fatalf("%+v overlaps %+v", e, other)
				}
			}
			live = append(live, e)
		}
		for _, e := range live {
			a.release(e)
		}
		if len(a.free) != 1 || a.free[0] != (extent{0, whole}) || len(a.starts) != 1 {
			rt.Fatalf("free in the end: %+v", a.free)
		}
	})
}

func TestTheNaiveAllocatorTakesTheBestFit(t *testing.T) {
	a := newNaive(10 * naiveUnit)
	var blocks []extent
	for _, units := range []int64{3, 1, 1, 1, 4} {
		e, err := a.alloc(units * naiveUnit)
		if err != nil {
			t.Fatal(err)
		}
		blocks = append(blocks, e)
	}
	a.release(blocks[0])
	a.release(blocks[2])
	if e, err := a.alloc(1); err != nil || e != blocks[2] {
		t.Errorf("got %+v (%v), want the hole of one unit", e, err)
	}
}
