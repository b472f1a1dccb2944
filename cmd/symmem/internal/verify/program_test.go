package verify

import (
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"symmem"
)

// anyConfig draws a workload of moderate length.
func anyConfig(t *rapid.T) Config {
	c := Default()
	c.Cases = rapid.IntRange(1, 9).Draw(t, "cases")
	c.Rounds = rapid.IntRange(1, 4).Draw(t, "rounds")
	c.Elements = rapid.Int64Range(1, 1<<20).Draw(t, "elements")
	c.Churn = rapid.IntRange(0, 300).Draw(t, "churn")
	c.Groups = rapid.IntRange(1, 5).Draw(t, "groups")
	c.Seed = rapid.Uint64().Draw(t, "seed")
	if rapid.Bool().Draw(t, "by address") {
		c.Placement = symmem.PlaceByAddress
	}
	return c
}

// walk runs a program on a model that only records which slots hold a buffer.
type walk struct {
	t       *rapid.T
	p       *program
	open    bool
	held    map[int]int64 // elements by slot
	filled  map[int]int   // row by slot
	reduced map[int]int   // times by row
	most    int64         // elements held at once
}

func (w *walk) step(s step) {
	switch s.action {
	case doOpen, doEnd:
		if w.open == (s.action == doOpen) {
			w.t.Fatalf("scope is open: %v", w.open)
		}
		w.open = !w.open
	case doAlloc:
		if _, taken := w.held[s.slot]; taken || !w.open || s.slot >= w.p.slots {
			w.t.Fatalf("allocating slot %d of %d: taken %v, scope %v",
				s.slot, w.p.slots, taken, w.open)
		}
		w.held[s.slot] = s.elements
		w.most = max(w.most, w.total())
	case doFree:
		if _, taken := w.held[s.slot]; !taken {
			w.t.Fatalf("freeing slot %d, which is empty", s.slot)
		}
		delete(w.held, s.slot)
		delete(w.filled, s.slot)
	case doFill, doReduce:
		w.row(s)
	case doNoise:
	}
}

func (w *walk) row(s step) {
	if elements := w.p.rows[s.row].elements; w.held[s.slot] != elements {
		w.t.Fatalf("slot %d holds %d elements, row %d has %d",
			s.slot, w.held[s.slot], s.row, elements)
	}
	if s.action == doFill {
		w.filled[s.slot] = s.row
		return
	}
	if w.filled[s.slot] != s.row {
		w.t.Fatalf("slot %d is reduced for row %d, but holds row %d",
			s.slot, s.row, w.filled[s.slot])
	}
	w.reduced[s.row]++
}

func (w *walk) total() int64 {
	sum := int64(0)
	for _, elements := range w.held {
		sum += elements
	}
	return sum
}

func TestProgramUsesLiveBuffersAndFreesAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := anyConfig(t)
		p := compose(c)
		w := &walk{
			t: t, p: p, held: map[int]int64{}, filled: map[int]int{}, reduced: map[int]int{},
		}
		for _, s := range p.steps {
			w.step(s)
		}
		if w.open || len(w.held) > 0 {
			t.Fatalf("scope open %v, %d slots held at the end", w.open, len(w.held))
		}
		for at := range p.rows {
			if w.reduced[at] != 1 {
				t.Fatalf("row %d was reduced %d times", at, w.reduced[at])
			}
		}
	})
}

func TestProgramDependsOnlyOnConfig(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := anyConfig(t)
		if !reflect.DeepEqual(compose(c), compose(c)) {
			t.Fatal("two programs of one config differ")
		}
	})
}

func TestProgramByAddressReservesTwiceItsMemory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := anyConfig(t)
		c.Placement = symmem.PlaceByAddress
		p := compose(c)
		w := &walk{
			t: t, p: p, held: map[int]int64{}, filled: map[int]int{}, reduced: map[int]int{},
		}
		for _, s := range p.steps {
			w.step(s)
		}
		if prepared := 32 * p.first / elementBytes; !p.spread || 2*w.most > prepared {
			t.Fatalf("%d elements held at once, %d prepared", w.most, prepared)
		}
	})
}

func TestNeighbouringRowsHaveDifferentValues(t *testing.T) {
	c := Default()
	c.Cases, c.Churn, c.Rounds, c.Groups = 8, 200, 40, 4
	last := map[bool][]float64{}
	for _, r := range compose(c).rows {
		for _, v := range last[r.churn] {
			if v == r.value {
				t.Fatalf("row %s has value %v, which an earlier row of its kind has", r.name, v)
			}
		}
		last[r.churn] = append(last[r.churn], r.value)
		window := last[r.churn]
		last[r.churn] = window[max(0, len(window)-c.Cases*c.Groups):]
	}
}

func TestDefaultIsSixteenCasesInTwoRounds(t *testing.T) {
	p := compose(Default())
	if len(p.rows) != 16 || p.rows[0].name != "1.1" || p.rows[15].name != "2.8" {
		t.Fatalf("%d rows from %s to %s",
			len(p.rows), p.rows[0].name, p.rows[len(p.rows)-1].name)
	}
}
