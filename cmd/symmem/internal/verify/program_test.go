package verify

import (
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"symmem"
)

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

// model executes a program without allocating memory, and tracks which slots hold a buffer.
type model struct {
	t       *rapid.T
	p       *program
	open    bool
	live    map[int]int64 // number of elements by slot
	filled  map[int]int   // row by slot
	reduced map[int]int   // number of reductions by row
	peak    int64         // maximum number of elements held at once
}

func (m *model) step(s step) {
	switch s.action {
	case doOpen, doEnd:
		if m.open == (s.action == doOpen) {
			m.t.Fatalf("action %d with the scope open = %v", s.action, m.open)
		}
		m.open = !m.open
	case doAlloc:
		if _, taken := m.live[s.slot]; taken || !m.open || s.slot >= m.p.slots {
			m.t.Fatalf("allocating slot %d of %d with already allocated = %v, scope open = %v",
				s.slot, m.p.slots, taken, m.open)
		}
		m.live[s.slot] = s.elements
		m.peak = max(m.peak, m.total())
	case doFree:
		if _, taken := m.live[s.slot]; !taken {
			m.t.Fatalf("freeing slot %d, which is empty", s.slot)
		}
		delete(m.live, s.slot)
		delete(m.filled, s.slot)
	case doFill, doReduce:
		m.row(s)
	case doNoise:
	}
}

func (m *model) row(s step) {
	if elements := m.p.rows[s.row].elements; m.live[s.slot] != elements {
		m.t.Fatalf("slot %d holds %d elements, but row %d has %d",
			s.slot, m.live[s.slot], s.row, elements)
	}
	if s.action == doFill {
		m.filled[s.slot] = s.row
		return
	}
	if m.filled[s.slot] != s.row {
		m.t.Fatalf("slot %d is reduced for row %d, but holds row %d",
			s.slot, s.row, m.filled[s.slot])
	}
	m.reduced[s.row]++
}

func (m *model) total() int64 {
	sum := int64(0)
	for _, elements := range m.live {
		sum += elements
	}
	return sum
}

func TestProgramUsesLiveBuffersAndFreesAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := anyConfig(t)
		p := compose(c)
		w := &model{
			t: t, p: p, live: map[int]int64{}, filled: map[int]int{}, reduced: map[int]int{},
		}
		for _, s := range p.steps {
			w.step(s)
		}
		if w.open || len(w.live) > 0 {
			t.Fatalf("after the last step, scope open = %v with %d slots allocated, want false and 0",
				w.open, len(w.live))
		}
		for index := range p.rows {
			if w.reduced[index] != 1 {
				t.Fatalf("row %d was reduced %d times, want 1", index, w.reduced[index])
			}
		}
	})
}

func TestProgramDependsOnlyOnConfig(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := anyConfig(t)
		if !reflect.DeepEqual(compose(c), compose(c)) {
			t.Fatal("compose returned two different programs for the same Config")
		}
	})
}

func TestPlacementByAddressMapsTwiceTheMemory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := anyConfig(t)
		c.Placement = symmem.PlaceByAddress
		p := compose(c)
		w := &model{
			t: t, p: p, live: map[int]int64{}, filled: map[int]int{}, reduced: map[int]int{},
		}
		for _, s := range p.steps {
			w.step(s)
		}
		if prepared := 32 * p.firstSegment / elementBytes; !p.mapsSegments || 2*w.peak > prepared {
			t.Fatalf("up to %d elements are held at once, but only %d are mapped in advance",
				w.peak, prepared)
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
				t.Fatalf("row %s has the value %v of a recent row", r.name, v)
			}
		}
		last[r.churn] = append(last[r.churn], r.value)
		window := last[r.churn]
		last[r.churn] = window[max(0, len(window)-c.Cases*c.Groups):]
	}
}

func TestDefaultHas16Rows(t *testing.T) {
	p := compose(Default())
	if len(p.rows) != 16 || p.rows[0].name != "1.1" || p.rows[15].name != "2.8" {
		t.Fatalf("got %d rows from %s to %s, want 16 from 1.1 to 2.8",
			len(p.rows), p.rows[0].name, p.rows[len(p.rows)-1].name)
	}
}
