package verify

import (
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"symmem"
)

// drawConfig returns a random valid Config.
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

// model executes a program without allocating memory, and fails the test if a step is invalid. A
// slot is the number of a buffer. A case is a buffer that is filled with input and all-reduced.
type model struct {
	t           *rapid.T
	p           *program
	isScopeOpen bool          // buffers can only be allocated in a scope
	live        map[int]int64 // number of elements of each live buffer, by slot
	filled      map[int]int   // index of the case with whose input a buffer was filled, by slot
	reduced     map[int]int   // number of reductions by case index
	peak        int64         // maximum number of live elements
}

// run executes all steps of a program, and returns the final state.
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
		if s.slot >= m.p.slots {
			m.t.Fatalf("allocating slot %d, but the program has only %d slots", s.slot, m.p.slots)
		}

		if _, isLive := m.live[s.slot]; isLive {
			m.t.Fatalf("allocating slot %d, which is already allocated", s.slot)
		}

		if !m.isScopeOpen {
			m.t.Fatalf("allocating slot %d outside a scope", s.slot)
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
	case makeNoise: // allocates other memory, which the model ignores
	}
}

// checkCase executes a step that fills or reduces the buffer of a case. The buffer must have the
// size of the case and, to be reduced, contain its input.
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

// TestProgramUsesLiveBuffersAndFreesAll executes random programs in a model. Each step must be
// valid, each case must run once, and nothing may remain.
func TestProgramUsesLiveBuffersAndFreesAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := compose(drawConfig(t))
		m := run(t, p)
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

// TestProgramDependsOnlyOnConfig checks that ranks, which compose the program separately, get the
// same program.
func TestProgramDependsOnlyOnConfig(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawConfig(t)
		if !reflect.DeepEqual(compose(c), compose(c)) {
			t.Fatal("compose returned two different programs for the same Config")
		}
	})
}

// TestPlacementByAddressMapsTwiceTheMemory checks the memory that is mapped in advance for
// placement by address. It must be ample, or the run would fail before a sum is wrong.
func TestPlacementByAddressMapsTwiceTheMemory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawConfig(t)
		c.Placement = symmem.PlaceByAddress
		p := compose(c)
		if !p.mustMapSegments {
			t.Fatal("mustMapSegments = false, want true")
		}

		peak := run(t, p).peak
		const mappedParts = 32 // workload.MapSegments maps 32 times the first segment's size
		mapped := mappedParts * p.firstSegment / elementBytes
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
	c.Cases = 8
	c.Churn = 200 // gives a case of churn, a check of a random block, for every 8 steps: 25
	c.Rounds = 40 // enough for values to repeat
	c.Groups = 4
	recentCount := c.Cases * c.Groups // the cases of a round, without those of churn
	recent := map[bool][]float64{}    // values of the last recentCount cases, by isChurn
	for _, r := range compose(c).cases {
		values := recent[r.isChurn]
		if slices.Contains(values, r.value) {
			t.Fatalf("case %s has the value %v of a recent case", r.name, r.value)
		}

		values = append(values, r.value)
		recent[r.isChurn] = values[max(0, len(values)-recentCount):]
	}
}

// TestDefaultHas16Cases checks the cases of the default: 8 in each of 2 rounds. The name of a case
// has the round and the number in it.
func TestDefaultHas16Cases(t *testing.T) {
	p := compose(Default())
	if len(p.cases) != 16 {
		t.Fatalf("got %d cases, want 16", len(p.cases))
	}

	first, last := p.cases[0].name, p.cases[15].name
	if first != "1.1" || last != "2.8" {
		t.Fatalf("got cases from %s to %s, want from 1.1 to 2.8", first, last)
	}
}
