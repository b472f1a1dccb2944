package verify

import (
	"fmt"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
	"symmem/driver"
)

type action uint8

const (
	openScope   action = iota
	endScope           // register new segments
	allocBuffer        // in the scope
	freeBuffer
	fillBuffer   // with the case's input
	reduceBuffer // all-reduce and check
	makeNoise    // unrelated allocations, which differ between ranks
)

type step struct {
	action    action
	slot      int   // number of the buffer
	caseIndex int   // index in program.cases, for fillBuffer and reduceBuffer
	elements  int64 // for allocBuffer
}

// plannedCase is an all-reduce whose result is checked and reported.
type plannedCase struct {
	name     string
	round    int
	group    int
	isChurn  bool // the buffer is one of the random allocations
	elements int64
	value    float64
	dataType symmem.DataType
	reduceOp symmem.ReduceOp
	formula  driver.Formula // order of additions that the result must match bit for bit, if set
	seed     uint64         // of the inputs, if formula is set
}

// program lists the steps that all ranks execute. It does not change after compose.
type program struct {
	steps []step
	cases []plannedCase
	slots int // number of buffers, each of which has a slot

	firstSegment    int64 // in bytes
	mustMapSegments bool  // call workload.MapSegments before the first step
}

const elementBytes = 4

type composer struct {
	config     Config
	program    program
	generator  *generator
	caseCount  int
	checkCount int // checks that addChurn has added
}

func compose(config Config) *program {
	c := &composer{config: config, generator: newGenerator(config.Seed, config.Elements)}
	c.program.firstSegment = workload.FirstSegment
	if config.Placement == symmem.PlaceByAddress {
		c.program.firstSegment, c.program.mustMapSegments = c.largeFirstSegment(), true
	}
	for round := 1; round <= config.Rounds; round++ {
		c.addChurn(round)
		for group := range config.Groups {
			c.addCases(round, group)
		}
		c.addFrees()
	}
	return &c.program
}

func (c *composer) addStep(s step) { c.program.steps = append(c.program.steps, s) }

// largeFirstSegment returns a size with which workload.MapSegments, which maps 32 times as much,
// maps twice the needed memory.
func (c *composer) largeFirstSegment() int64 {
	need := (int64(c.config.Cases)*c.config.Elements + c.generator.maxLiveElements) * elementBytes
	return (need/16 + workload.FirstSegment - 1) / workload.FirstSegment * workload.FirstSegment
}

// addChurn checks a block with an all-reduce at every churnStride-th step, but at most about
// churnChecks times per round.
const (
	churnStride = 8
	churnChecks = 64
)

func (c *composer) addChurn(round int) {
	stride := max(churnStride, c.config.Churn/churnChecks)
	for n := 1; n <= c.config.Churn; n++ {
		c.addStep(step{action: makeNoise})
		c.addChurnStep()
		if block, ok := c.generator.drawLiveBlock(); ok && n%stride == 0 {
			c.checkCount++
			c.addReduces([]liveBlock{block}, plannedCase{
				name: fmt.Sprintf("%d.churn%d", round, n), round: round, isChurn: true,
				group: c.checkCount % c.config.Groups,
				value: float64(maxValue + 1 + c.checkCount%maxValue),
			})
		}
	}
}

func (c *composer) addChurnStep() {
	slot := c.program.slots
	block, allocated := c.generator.step(slot)
	if !allocated {
		c.addStep(step{action: freeBuffer, slot: block.slot})
		return
	}
	c.addStep(step{action: openScope})
	c.addAlloc(block.elements)
	c.addStep(step{action: endScope})
}

func (c *composer) addCases(round, group int) {
	var blocks []liveBlock
	c.addStep(step{action: openScope})
	for range c.config.Cases {
		c.addStep(step{action: makeNoise})
		elements := c.config.Elements
		blocks = append(blocks, liveBlock{slot: c.addAlloc(elements), elements: elements})
	}
	c.addStep(step{action: endScope})
	var cases []plannedCase
	for i := range blocks {
		c.caseCount++
		cases = append(cases, plannedCase{
			name: fmt.Sprintf("%d.%d", round, i+1), round: round, group: group,
			value: float64(1 + (c.caseCount-1)%maxValue),
		})
	}
	c.addReduces(blocks, cases...)
	for _, b := range blocks {
		c.addStep(step{action: freeBuffer, slot: b.slot})
	}
}

// Sums of inputs up to maxValue over a few hundred ranks are exact in float32. The checks in
// addChurn use the next maxValue values.
const maxValue = 997

func (c *composer) addReduces(blocks []liveBlock, cases ...plannedCase) {
	firstIndex := len(c.program.cases)
	for i, b := range blocks {
		cases[i].elements = b.elements
		cases[i].dataType, cases[i].reduceOp = symmem.Float32, symmem.Sum
		c.config.setFormula(&cases[i], firstIndex+i)
		c.addStep(step{action: fillBuffer, slot: b.slot, caseIndex: firstIndex + i})
	}
	c.program.cases = append(c.program.cases, cases...)
	for i, b := range blocks {
		c.addStep(step{action: reduceBuffer, slot: b.slot, caseIndex: firstIndex + i})
	}
}

func (c *composer) addFrees() {
	for len(c.generator.live) > 0 {
		block := c.generator.release(len(c.generator.live) - 1)
		c.addStep(step{action: freeBuffer, slot: block.slot})
	}
}

func (c *composer) addAlloc(elements int64) int {
	slot := c.program.slots
	c.program.slots++
	c.addStep(step{action: allocBuffer, slot: slot, elements: elements})
	return slot
}
