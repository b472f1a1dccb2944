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

// model simulates a program, and fails the test at an invalid step. A case is an all-reduce of one
// buffer. A slot is the number of a buffer.
type model struct {
	t           *rapid.T
	p           *program
	isScopeOpen bool
	live        map[int]int64 // sizes of live buffers in elements, by slot
	filled      map[int]int   // index of the case whose input a buffer holds, by slot
	reduced     map[int]int   // number of reductions, by case index
	peak        int64         // maximum number of live elements
}

// simulate returns the state after all steps of p.
func simulate(t *rapid.T, p *program) *model {
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
		m.require(!m.isScopeOpen, "a scope is opened in another scope")
		m.isScopeOpen = true
	case endScope:
		m.require(m.isScopeOpen, "a scope is ended, but none is open")
		m.isScopeOpen = false
	case allocBuffer:
		m.alloc(s.slot, s.elements)
	case freeBuffer:
		_, isLive := m.live[s.slot]
		m.require(isLive, "freeing slot %d, which is empty", s.slot)
		delete(m.live, s.slot)
		delete(m.filled, s.slot)
	case fillBuffer:
		m.checkSize(s)
		m.filled[s.slot] = s.caseIndex
	case reduceBuffer:
		m.checkSize(s)
		filledCase, isFilled := m.filled[s.slot]
		m.require(isFilled, "slot %d is reduced before it is filled", s.slot)
		m.require(filledCase == s.caseIndex, "slot %d is reduced for case %d, but holds case %d",
			s.slot, s.caseIndex, filledCase)
		m.reduced[s.caseIndex]++
	case makeNoise: // allocates memory that the model does not track
	}
}

func (m *model) require(isValid bool, format string, args ...any) {
	m.t.Helper()
	if !isValid {
		m.t.Fatalf(format, args...)
	}
}

func (m *model) alloc(slot int, elements int64) {
	m.require(slot < m.p.slotCount, "allocating slot %d, but the program has only %d slots",
		slot, m.p.slotCount)
	_, isLive := m.live[slot]
	m.require(!isLive, "allocating slot %d, which is already allocated", slot)
	m.require(m.isScopeOpen, "allocating slot %d outside a scope", slot)
	m.live[slot] = elements
	m.peak = max(m.peak, m.countLiveElements())
}

// checkSize compares the sizes of the step's buffer and case.
func (m *model) checkSize(s step) {
	got := m.live[s.slot]
	want := m.p.cases[s.caseIndex].elements
	m.require(got == want, "slot %d holds %d elements, but case %d has %d",
		s.slot, got, s.caseIndex, want)
}

func (m *model) countLiveElements() int64 {
	sum := int64(0)
	for _, elements := range m.live {
		sum += elements
	}

	return sum
}

// The steps of a random program are valid, reduce each case once and free all buffers.
func TestProgramUsesLiveBuffersAndFreesAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := compose(drawConfig(t))
		m := simulate(t, p)
		if m.isScopeOpen {
			t.Fatal("a scope is open after the last step")
		}

		if len(m.live) > 0 {
			t.Fatalf("%d slots are allocated after the last step, want 0", len(m.live))
		}

		for index := range p.cases {
			if m.reduced[index] != 1 {
				t.Fatalf("case %d was reduced %d times, want 1", index, m.reduced[index])
			}
		}
	})
}

// Each rank composes its own program, so compose must be deterministic.
func TestProgramDependsOnlyOnConfig(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawConfig(t)
		if !reflect.DeepEqual(compose(c), compose(c)) {
			t.Fatal("compose returned two different programs for the same Config")
		}
	})
}

// With placement by address, a run maps twice the memory in advance, so that sums become wrong
// before memory runs out.
func TestPlacementByAddressMapsTwiceTheMemory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawConfig(t)
		c.Placement = symmem.PlaceByAddress
		p := compose(c)
		if !p.mustMapSegments {
			t.Fatal("mustMapSegments = false, want true")
		}

		peak := simulate(t, p).peak
		const mapFactor = 32 // workload.MapSegments maps 32 times the first segment
		mapped := mapFactor * p.firstSegment / elementBytes
		if mapped < 2*peak {
			t.Fatalf("%d elements are mapped in advance, want at least twice the %d live elements",
				mapped, peak)
		}
	})
}

// Recent cases have other values, so their stale data cannot give a right sum.
func TestNearbyCasesHaveDifferentValues(t *testing.T) {
	c := Default()
	c.Cases = 8
	c.Churn = 200 // gives 25 churn cases in each round
	c.Rounds = 40 // enough for values to repeat
	c.Groups = 4
	recentCount := c.Cases * c.Groups // all cases of a round except churn
	recent := map[bool][]float64{}    // last recentCount values, by isChurn
	for _, planned := range compose(c).cases {
		values := recent[planned.isChurn]
		if slices.Contains(values, planned.value) {
			t.Fatalf("case %s has the value %v of a recent case", planned.name, planned.value)
		}

		values = append(values, planned.value)
		recent[planned.isChurn] = values[max(0, len(values)-recentCount):]
	}
}

func TestDefaultHas16Cases(t *testing.T) {
	p := compose(Default())
	if len(p.cases) != 16 {
		t.Fatalf("got %d cases, want 16", len(p.cases))
	}

	first := p.cases[0].name
	last := p.cases[15].name
	if first != "1.1" || last != "2.8" {
		t.Fatalf("got cases from %s to %s, want from 1.1 to 2.8", first, last)
	}
}
