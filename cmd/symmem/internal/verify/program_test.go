package verify

import (
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"symmem"
)

func drawConfig(t *rapid.T) Config {
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

// model executes a program without allocating memory, and fails the test if a step is invalid.
type model struct {
	t           *rapid.T
	p           *program
	isScopeOpen bool
	live        map[int]int64 // number of elements of each live buffer, by slot
	filled      map[int]int   // index of the case with whose input a buffer was filled, by slot
	reduced     map[int]int   // number of reductions by case index
	peak        int64         // maximum number of live elements
}

func run(t *rapid.T, p *program) *model {
	m := &model{
		t: t, p: p, live: map[int]int64{}, filled: map[int]int{}, reduced: map[int]int{},
	}
	for _, s := range p.steps {
		m.step(s)
	}
	return m
}

func (m *model) step(s step) {
	switch s.action {
	case openScope:
		if m.isScopeOpen {
			m.t.Fatal("a scope is opened in another scope")
		}
		m.isScopeOpen = true
	case endScope:
		if !m.isScopeOpen {
			m.t.Fatal("a scope is ended, but none is open")
		}
		m.isScopeOpen = false
	case allocBuffer:
		if _, isLive := m.live[s.slot]; isLive || !m.isScopeOpen || s.slot >= m.p.slots {
			m.t.Fatalf("allocating slot %d of %d with already allocated = %v, scope open = %v",
				s.slot, m.p.slots, isLive, m.isScopeOpen)
		}
		m.live[s.slot] = s.elements
		m.peak = max(m.peak, m.countLiveElements())
	case freeBuffer:
		if _, isLive := m.live[s.slot]; !isLive {
			m.t.Fatalf("freeing slot %d, which is empty", s.slot)
		}
		delete(m.live, s.slot)
		delete(m.filled, s.slot)
	case fillBuffer, reduceBuffer:
		m.checkCase(s)
	case makeNoise:
	}
}

func (m *model) checkCase(s step) {
	if elements := m.p.cases[s.caseIndex].elements; m.live[s.slot] != elements {
		m.t.Fatalf("slot %d holds %d elements, but case %d has %d",
			s.slot, m.live[s.slot], s.caseIndex, elements)
	}
	if s.action == fillBuffer {
		m.filled[s.slot] = s.caseIndex
		return
	}
	if m.filled[s.slot] != s.caseIndex {
		m.t.Fatalf("slot %d is reduced for case %d, but holds case %d",
			s.slot, s.caseIndex, m.filled[s.slot])
	}
	m.reduced[s.caseIndex]++
}

func (m *model) countLiveElements() int64 {
	sum := int64(0)
	for _, elements := range m.live {
		sum += elements
	}
	return sum
}

func TestProgramUsesLiveBuffersAndFreesAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := compose(drawConfig(t))
		m := run(t, p)
		if m.isScopeOpen || len(m.live) > 0 {
			t.Fatalf("after the last step, scope open = %v with %d slots allocated, want false and 0",
				m.isScopeOpen, len(m.live))
		}
		for index := range p.cases {
			if m.reduced[index] != 1 {
				t.Fatalf("case %d was reduced %d times, want 1", index, m.reduced[index])
			}
		}
	})
}

func TestProgramDependsOnlyOnConfig(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawConfig(t)
		if !reflect.DeepEqual(compose(c), compose(c)) {
			t.Fatal("compose returned two different programs for the same Config")
		}
	})
}

func TestPlacementByAddressMapsTwiceTheMemory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawConfig(t)
		c.Placement = symmem.PlaceByAddress
		p := compose(c)
		if !p.mustMapSegments {
			t.Fatal("mustMapSegments = false, want true")
		}
		peak := run(t, p).peak
		mapped := 32 * p.firstSegment / elementBytes // by workload.MapSegments
		if mapped < 2*peak {
			t.Fatalf("%d elements are mapped in advance, want at least twice the %d live elements",
				mapped, peak)
		}
	})
}

// TestNearbyCasesHaveDifferentValues checks that a case cannot pass with the data of one of the
// cases before it.
func TestNearbyCasesHaveDifferentValues(t *testing.T) {
	c := Default()
	c.Cases, c.Churn, c.Rounds, c.Groups = 8, 200, 40, 4
	recentCount := c.Cases * c.Groups
	recent := map[bool][]float64{} // values of the last recentCount cases, by isChurn
	for _, r := range compose(c).cases {
		values := recent[r.isChurn]
		if slices.Contains(values, r.value) {
			t.Fatalf("case %s has the value %v of a recent case", r.name, r.value)
		}
		values = append(values, r.value)
		recent[r.isChurn] = values[max(0, len(values)-recentCount):]
	}
}

func TestDefaultHas16Cases(t *testing.T) {
	p := compose(Default())
	if len(p.cases) != 16 || p.cases[0].name != "1.1" || p.cases[15].name != "2.8" {
		t.Fatalf("got %d cases from %s to %s, want 16 from 1.1 to 2.8",
			len(p.cases), p.cases[0].name, p.cases[len(p.cases)-1].name)
	}
}
