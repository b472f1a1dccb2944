package verify

import (
	"fmt"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
	"symmem/driver"
)

// All ranks run the same program, which is a list of steps. With one buffer, the steps are:
//
//	openScope
//	makeNoise
//	allocBuffer   slot 0
//	endScope
//	fillBuffer    slot 0, case 0
//	reduceBuffer  slot 0, case 0
//	freeBuffer    slot 0
//
// A slot is the number of a buffer in the program. A case is an all-reduce of a buffer, whose
// result is checked. If the case has the value 5, rank 0 fills the buffer with 5, rank 1 with 10,
// and rank 2 with 15. The right result on the three ranks is thus 30.
//
// A program consists of rounds, each of which begins with churn: random allocations and frees. They
// leave several free blocks, between which the pool must choose later. Some of the random buffers
// are checked, too. Then each group of ranks runs its cases. At the end of the round, the remaining
// random buffers are freed.

// action selects the operation of a step.
type action uint8

const (
	openScope    action = iota // open a scope of the group of all ranks, for allocations
	endScope                   // end the scope, which registers new memory with the group
	allocBuffer                // allocate a buffer in the scope
	freeBuffer                 // free a buffer
	fillBuffer                 // fill a buffer with the input of a case
	reduceBuffer               // all-reduce a buffer and check the result
	makeNoise                  // make other allocations, which differ between ranks
)

type step struct {
	action    action
	slot      int   // the buffer; unused by openScope, endScope and makeNoise
	caseIndex int   // index in program.cases; used by fillBuffer and reduceBuffer
	elements  int64 // number of 4-byte elements; used by allocBuffer
}

// plannedCase is a case before it runs.
type plannedCase struct {
	name     string
	round    int  // counted from 1
	group    int  // number of the group; 0 is the world, which consists of all ranks
	isChurn  bool // whether the buffer is a random one
	elements int64
	value    float64 // each element of rank 0's input; unused if formula is set
	dataType symmem.DataType
	reduceOp symmem.ReduceOp
	formula  driver.Formula // if set, an order of additions that determines each bit of the result
	seed     uint64         // of the random inputs; unused if formula is not set
}

// program does not change after compose.
type program struct {
	steps []step
	cases []plannedCase
	slots int // number of slots

	firstSegment    int64 // size in bytes of the first segment (piece of memory) that the pool maps
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

// compose returns the program for a configuration.
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

// largeFirstSegment returns the size of the first segment if segments are mapped in advance. They
// must have at least twice the memory that the buffers need.
func (c *composer) largeFirstSegment() int64 {
	caseElements := int64(c.config.Cases) * c.config.Elements
	neededBytes := (caseElements + c.generator.maxLiveElements) * elementBytes
	const mappedSegments = 32 // workload.MapSegments maps 32 times the size of the first segment.
	minSize := 2 * neededBytes / mappedSegments
	const unit = workload.FirstSegment
	return (minSize + unit - 1) / unit * unit // rounded up to a multiple of the unit
}

func (c *composer) addStep(s step) { c.program.steps = append(c.program.steps, s) }

// addAlloc adds the allocation of a buffer in the open scope, and returns the buffer's slot.
func (c *composer) addAlloc(elements int64) int {
	slot := c.program.slots
	c.program.slots++
	c.addStep(step{action: allocBuffer, slot: slot, elements: elements})
	return slot
}

// With 200 random allocations and frees, a random buffer is checked after every 8. With 6400, a
// buffer is checked after every 100, so that a round has 64 checks.
const (
	churnStride = 8  // smallest number of random allocations and frees between two checks
	churnChecks = 64 // approximate maximum number of checks in a round
)

// addChurn adds random allocations and frees, and the checks between them.
func (c *composer) addChurn(round int) {
	stride := max(churnStride, c.config.Churn/churnChecks)
	for n := 1; n <= c.config.Churn; n++ {
		c.addStep(step{action: makeNoise})
		c.addRandomStep()
		// Draw a block even if no check is due, so that the random numbers do not depend on the stride.
		block, exists := c.generator.drawLiveBlock()
		isDue := n%stride == 0
		if isDue && exists {
			c.addCheck(round, n, block)
		}
	}
}

// addRandomStep adds a random allocation or free.
func (c *composer) addRandomStep() {
	nextSlot := c.program.slots // the slot that addAlloc would use
	block, isAlloc := c.generator.step(nextSlot)
	if !isAlloc {
		c.addStep(step{action: freeBuffer, slot: block.slot})
		return
	}

	c.addStep(step{action: openScope})
	c.addAlloc(block.elements)
	c.addStep(step{action: endScope})
}

// addCheck adds a case that reduces a random buffer after n random allocations and frees.
func (c *composer) addCheck(round, n int, block liveBlock) {
	c.checkCount++
	c.addReduces([]liveBlock{block}, plannedCase{
		name:    fmt.Sprintf("%d.churn%d", round, n),
		round:   round,
		isChurn: true,
		group:   c.checkCount % c.config.Groups,
		value:   float64(maxValue + 1 + c.checkCount%maxValue), // maxValue+1 to 2*maxValue
	})
}

// maxValue is the largest value of a case from addCases. Those of addCheck have the next maxValue
// values. Values are small enough that sums over up to 128 ranks are exact in float32.
const maxValue = 997

// addCases adds config.Cases cases of a group, each with a new buffer. All buffers are allocated
// before the first all-reduce, and freed after the last one.
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
		value := 1 + c.caseCount%maxValue // 1 to maxValue, and then 1 again
		c.caseCount++
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

// addReduces adds cases and their steps. Case i reduces block i. All blocks are filled before the
// first one is reduced.
func (c *composer) addReduces(blocks []liveBlock, cases ...plannedCase) {
	firstIndex := len(c.program.cases)
	for i, b := range blocks {
		caseIndex := firstIndex + i
		cases[i].elements = b.elements
		cases[i].dataType = symmem.Float32
		cases[i].reduceOp = symmem.Sum
		c.config.setFormula(&cases[i], caseIndex) // may change the type and the reduction
		c.addStep(step{action: fillBuffer, slot: b.slot, caseIndex: caseIndex})
	}

	c.program.cases = append(c.program.cases, cases...)
	for i, b := range blocks {
		c.addStep(step{action: reduceBuffer, slot: b.slot, caseIndex: firstIndex + i})
	}
}

// addFrees adds the frees of the random buffers that are still allocated.
func (c *composer) addFrees() {
	for len(c.generator.live) > 0 {
		lastIndex := len(c.generator.live) - 1
		block := c.generator.release(lastIndex)
		c.addStep(step{action: freeBuffer, slot: block.slot})
	}
}
