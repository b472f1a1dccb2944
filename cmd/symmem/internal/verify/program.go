package verify

import (
	"fmt"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

// All ranks run the same program, a list of steps. A slot is the number of a buffer. A case is an
// all-reduce whose result is checked. With one buffer, the steps are:
//
//	openScope
//	makeNoise
//	allocBuffer   slot 0
//	endScope
//	fillBuffer    slot 0, case 0
//	reduceBuffer  slot 0, case 0
//	freeBuffer    slot 0
//
// Each round begins with churn: random allocations and frees that leave holes between the live
// buffers. Then each group of ranks runs its cases, and the round frees the churn buffers.

// action selects the operation of a step.
type action uint8

const (
	openScope action = iota // begins a scope of allocations
	endScope                // ends the scope and registers new memory with the world
	allocBuffer
	freeBuffer
	fillBuffer   // with the input of a case
	reduceBuffer // all-reduce and check the result
	makeNoise    // makes unrelated allocations and frees, which differ between ranks
)

type step struct {
	action    action
	slot      int   // of the buffer, if any
	caseIndex int   // in program.cases, for fillBuffer and reduceBuffer
	elements  int64 // of elementBytes each, for allocBuffer
}

type program struct {
	steps     []step
	cases     []plannedCase
	slotCount int

	firstSegment    int64 // size of the pool's first segment in bytes
	mustMapSegments bool  // call workload.MapSegments before the first step
}

const elementBytes = 4 // of a float32

type composer struct {
	config         Config
	program        program    // as composed so far
	generator      *generator // draws the churn
	groupCaseCount int        // cases that addGroupCases has added
	churnCaseCount int        // cases that addChurn has added
}

func compose(config Config) *program {
	c := &composer{config: config, generator: newGenerator(config.Seed, config.Elements)}
	c.program.firstSegment = workload.FirstSegment
	if config.Placement == symmem.PlaceByAddress {
		// Without mapped segments, the run would fail before this placement makes a sum wrong.
		c.program.firstSegment = c.largeFirstSegment()
		c.program.mustMapSegments = true
	}

	for round := 1; round <= config.Rounds; round++ {
		c.addChurn(round)
		for group := range config.Groups {
			c.addGroupCases(round, group)
		}

		c.addChurnFrees()
	}

	return &c.program
}

// largeFirstSegment returns a firstSegment for which workload.MapSegments maps at least twice the
// memory that live buffers need.
func (c *composer) largeFirstSegment() int64 {
	groupElements := int64(c.config.Cases) * c.config.Elements // freed before the next group
	neededBytes := (groupElements + c.generator.maxLiveElements) * elementBytes
	const mapFactor = 32 // MapSegments maps 32 times firstSegment
	minSize := 2 * neededBytes / mapFactor
	const unit = workload.FirstSegment
	return (minSize + unit - 1) / unit * unit // round up to a multiple of unit
}

func (c *composer) addStep(s step) { c.program.steps = append(c.program.steps, s) }

// addAlloc adds an allocation in a new slot.
func (c *composer) addAlloc(elements int64) plannedBuffer {
	slot := c.program.slotCount
	c.program.slotCount++
	c.addStep(step{action: allocBuffer, slot: slot, elements: elements})
	return plannedBuffer{slot: slot, elements: elements}
}

const (
	minChurnStride = 8  // allocations and frees between two checks of churn buffers
	maxChurnCases  = 64 // per round, approximately
)

// addChurn adds random allocations and frees, and checks a buffer after every stride of them.
func (c *composer) addChurn(round int) {
	stride := max(minChurnStride, c.config.Churn/maxChurnCases)
	for n := 1; n <= c.config.Churn; n++ {
		c.addStep(step{action: makeNoise})
		c.addRandomStep()
		// Draw even if no case is due, so that later draws do not depend on the stride.
		buffer, exists := c.generator.drawLive()
		isDue := n%stride == 0
		if isDue && exists {
			c.addChurnCase(round, n, buffer)
		}
	}
}

func (c *composer) addRandomStep() {
	nextSlot := c.program.slotCount // as in addAlloc
	buffer, isAlloc := c.generator.step(nextSlot)
	if !isAlloc {
		c.addStep(step{action: freeBuffer, slot: buffer.slot})
		return
	}

	c.addStep(step{action: openScope})
	c.addAlloc(buffer.elements)
	c.addStep(step{action: endScope})
}

// maxValue is the largest value of a group's cases. Churn cases have larger values, up to
// 2*maxValue. Sums over up to 128 ranks are exact in float32.
const maxValue = 997

// addChurnCase adds a case that reduces buffer after n random allocations and frees.
func (c *composer) addChurnCase(round, n int, buffer plannedBuffer) {
	c.churnCaseCount++
	value := maxValue + 1 + c.churnCaseCount%maxValue // from maxValue+1 to 2*maxValue
	c.addReduces([]plannedBuffer{buffer}, []plannedCase{{
		name:    fmt.Sprintf("%d.churn%d", round, n),
		round:   round,
		isChurn: true,
		group:   c.churnCaseCount % c.config.Groups,
		value:   float64(value),
	}})
}

// addGroupCases adds the cases of a group. All of their buffers are allocated before the first
// all-reduce and freed after the last one.
func (c *composer) addGroupCases(round, group int) {
	var buffers []plannedBuffer
	c.addStep(step{action: openScope})
	for range c.config.Cases {
		c.addStep(step{action: makeNoise})
		buffers = append(buffers, c.addAlloc(c.config.Elements))
	}

	c.addStep(step{action: endScope})
	var cases []plannedCase
	for i := range buffers {
		value := 1 + c.groupCaseCount%maxValue // from 1 to maxValue
		c.groupCaseCount++
		cases = append(cases, plannedCase{
			name: fmt.Sprintf("%d.%d", round, i+1), round: round, group: group,
			value: float64(value),
		})
	}

	c.addReduces(buffers, cases)
	for _, b := range buffers {
		c.addStep(step{action: freeBuffer, slot: b.slot})
	}
}

// addReduces adds cases and their steps: cases[i] fills and reduces buffers[i]. All buffers are
// filled before the first one is reduced.
func (c *composer) addReduces(buffers []plannedBuffer, cases []plannedCase) {
	firstIndex := len(c.program.cases)
	for i, b := range buffers {
		caseIndex := firstIndex + i
		cases[i].elements = b.elements
		cases[i].dataType = symmem.Float32
		cases[i].reduceOp = symmem.Sum
		cases[i].useFormula(&c.config, caseIndex) // may change the type and the reduction
		c.addStep(step{action: fillBuffer, slot: b.slot, caseIndex: caseIndex})
	}

	c.program.cases = append(c.program.cases, cases...)
	for i, b := range buffers {
		c.addStep(step{action: reduceBuffer, slot: b.slot, caseIndex: firstIndex + i})
	}
}

// addChurnFrees adds steps that free the remaining churn buffers.
func (c *composer) addChurnFrees() {
	for len(c.generator.live) > 0 {
		lastIndex := len(c.generator.live) - 1
		buffer := c.generator.release(lastIndex)
		c.addStep(step{action: freeBuffer, slot: buffer.slot})
	}
}
