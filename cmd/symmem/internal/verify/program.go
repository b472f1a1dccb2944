package verify

import (
	"fmt"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
	"symmem/driver"
)

// action selects the operation of a step in a program.
type action uint8

const (
	openScope    action = iota // open an allocation scope of the world
	endScope                   // end the scope, which registers new segments
	allocBuffer                // allocate a buffer in the scope
	freeBuffer                 // free a buffer
	fillBuffer                 // fill a buffer with the input of a case
	reduceBuffer               // all-reduce a buffer and check the result
	makeNoise                  // make unrelated allocations, which differ between ranks
)

type step struct {
	action    action
	slot      int   // number of the buffer; unused by openScope, endScope and makeNoise
	caseIndex int   // index in program.cases; used by fillBuffer and reduceBuffer
	elements  int64 // number of 4-byte elements; used by allocBuffer
}

// plannedCase is an all-reduce of one buffer. Its result is checked and reported.
type plannedCase struct {
	name     string
	round    int  // counted from 1
	group    int  // index of the group; 0 is the world
	isChurn  bool // whether the buffer is one of the random allocations of addChurn
	elements int64
	value    float64 // each element of the input of rank 0; unused if formula is set
	dataType symmem.DataType
	reduceOp symmem.ReduceOp
	formula  driver.Formula // order of additions that the result must match bit for bit, if set
	seed     uint64         // seed of the random inputs; unused if formula is not set
}

// program lists the steps that all ranks execute. It does not change after compose.
type program struct {
	steps []step
	cases []plannedCase
	slots int // number of buffers, each of which has a slot

	firstSegment    int64 // size of the pool's first segment in bytes
	mustMapSegments bool  // whether to call workload.MapSegments before the first step
}

// elementBytes is the size of the elements that step.elements and Config.Elements count.
const elementBytes = 4

// composer builds a program.
type composer struct {
	config     Config
	program    program    // the steps and cases added so far
	generator  *generator // draws the random allocations and frees
	caseCount  int        // number of cases that addCases has added
	checkCount int        // number of cases that addChurn has added
}

// compose returns the program for a configuration. Each round of the program allocates and frees
// random blocks, then runs the cases of each group, and finally frees the random blocks.
func compose(config Config) *program {
	c := &composer{config: config, generator: newGenerator(config.Seed, config.Elements)}
	c.program.firstSegment = workload.FirstSegment
	if config.Placement == symmem.PlaceByAddress {
		c.program.firstSegment = c.largeFirstSegment()
		c.program.mustMapSegments = true
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

// largeFirstSegment returns the size of the first segment for workload.MapSegments, which maps 32
// times this size. The size is a multiple of workload.FirstSegment. All segments together have at
// least twice the needed memory.
func (c *composer) largeFirstSegment() int64 {
	const unit = workload.FirstSegment
	caseElements := int64(c.config.Cases) * c.config.Elements
	neededBytes := (caseElements + c.generator.maxLiveElements) * elementBytes
	minSize := neededBytes / 16 // 2/32 of the needed memory
	return (minSize + unit - 1) / unit * unit
}

const (
	churnStride = 8  // smallest number of churn steps between two checks
	churnChecks = 64 // approximate maximum of checks per round
)

// addChurn adds random allocations and frees. After every churnStride steps, or more if there are
// many steps, it adds a check of a random live block with an all-reduce.
func (c *composer) addChurn(round int) {
	stride := max(churnStride, c.config.Churn/churnChecks)
	for n := 1; n <= c.config.Churn; n++ {
		c.addStep(step{action: makeNoise})
		c.addChurnStep()
		// Draw a block even if no check is due: the random numbers do not depend on the stride.
		block, ok := c.generator.drawLiveBlock()
		isCheckDue := n%stride == 0
		if ok && isCheckDue {
			c.checkCount++
			c.addReduces([]liveBlock{block}, plannedCase{
				name: fmt.Sprintf("%d.churn%d", round, n), round: round, isChurn: true,
				group: c.checkCount % c.config.Groups,
				value: float64(maxValue + 1 + c.checkCount%maxValue),
			})
		}
	}
}

// addChurnStep adds a random allocation or free.
func (c *composer) addChurnStep() {
	nextSlot := c.program.slots // the slot that addAlloc uses
	block, isAlloc := c.generator.step(nextSlot)
	if !isAlloc {
		c.addStep(step{action: freeBuffer, slot: block.slot})
		return
	}

	c.addStep(step{action: openScope})
	c.addAlloc(block.elements)
	c.addStep(step{action: endScope})
}

// addCases adds config.Cases cases of a group. All their buffers are allocated in one scope, and
// freed after the last all-reduce.
func (c *composer) addCases(round, group int) {
	var blocks []liveBlock
	c.addStep(step{action: openScope})
	for range c.config.Cases {
		c.addStep(step{action: makeNoise})
		slot := c.addAlloc(c.config.Elements)
		blocks = append(blocks, liveBlock{slot: slot, elements: c.config.Elements})
	}

	c.addStep(step{action: endScope})
	var cases []plannedCase
	for i := range blocks {
		c.caseCount++
		value := 1 + (c.caseCount-1)%maxValue // 1 to maxValue, and then 1 again
		cases = append(cases, plannedCase{
			name: fmt.Sprintf("%d.%d", round, i+1), round: round, group: group,
			value: float64(value),
		})
	}

	c.addReduces(blocks, cases...)
	for _, b := range blocks {
		c.addStep(step{action: freeBuffer, slot: b.slot})
	}
}

// maxValue is the largest plannedCase.value of addCases. addChurn uses the next maxValue values.
// The values are small enough that their sums over a few hundred ranks are exact in float32.
const maxValue = 997

// addReduces adds cases to the program, which first fills all blocks and then reduces them. Case i
// reduces block i.
func (c *composer) addReduces(blocks []liveBlock, cases ...plannedCase) {
	firstIndex := len(c.program.cases)
	for i, b := range blocks {
		caseIndex := firstIndex + i
		cases[i].elements = b.elements
		cases[i].dataType = symmem.Float32
		cases[i].reduceOp = symmem.Sum
		c.config.setFormula(&cases[i], caseIndex)
		c.addStep(step{action: fillBuffer, slot: b.slot, caseIndex: caseIndex})
	}

	c.program.cases = append(c.program.cases, cases...)
	for i, b := range blocks {
		c.addStep(step{action: reduceBuffer, slot: b.slot, caseIndex: firstIndex + i})
	}
}

// addFrees adds the frees of all random blocks that are live.
func (c *composer) addFrees() {
	for len(c.generator.live) > 0 {
		lastIndex := len(c.generator.live) - 1
		block := c.generator.release(lastIndex)
		c.addStep(step{action: freeBuffer, slot: block.slot})
	}
}

// addAlloc adds the allocation of a buffer in the open scope, and returns the buffer's slot.
func (c *composer) addAlloc(elements int64) int {
	slot := c.program.slots
	c.program.slots++
	c.addStep(step{action: allocBuffer, slot: slot, elements: elements})
	return slot
}
