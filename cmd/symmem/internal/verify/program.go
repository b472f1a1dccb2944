package verify

import (
	"fmt"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
	"symmem/driver"
)

type action uint8

const (
	doOpen   action = iota // open a scope for the world
	doEnd                  // end the scope, which registers new segments
	doAlloc                // allocate the slot's buffer in the scope
	doFree                 // free the slot's buffer
	doFill                 // write the row's input to the slot's buffer
	doReduce               // all-reduce the slot's buffer in the row's group, and check it
	doNoise                // make unrelated allocations, which differ between ranks
)

type step struct {
	action   action
	slot     int   // number of the buffer
	row      int   // index of the all-reduce, for doFill and doReduce
	elements int64 // for doAlloc
}

// row is an all-reduce that is checked and reported.
type row struct {
	name     string
	round    int
	group    int
	churn    bool // the buffer is one of the random allocations
	elements int64
	value    float64
	dataType symmem.DataType
	reduceOp symmem.ReduceOp
	// If formula is set, inputs are drawn from seed, and the result must match the formula bit for
	// bit.
	formula driver.Formula
	seed    uint64
}

// program lists the steps that all ranks execute. It is immutable after compose.
type program struct {
	steps []step
	rows  []row
	slots int // number of buffers over the whole run

	firstSegment int64 // in bytes
	mapsSegments bool  // call workload.MapSegments before the first step
}

const elementBytes = 4

type composer struct {
	config    Config
	program   program
	generator *generator
	numCases  int // number of cases so far
	numChecks int // number of checked churn blocks so far
}

func compose(config Config) *program {
	c := &composer{config: config, generator: newGenerator(config.Seed, config.Elements)}
	c.program.firstSegment = workload.FirstSegment
	if config.Placement == symmem.PlaceByAddress {
		c.program.firstSegment, c.program.mapsSegments = c.largeFirstSegment(), true
	}
	for round := 1; round <= config.Rounds; round++ {
		c.churn(round)
		for group := range config.Groups {
			c.cases(round, group)
		}
		c.freeLive()
	}
	return &c.program
}

func (c *composer) emit(s step) { c.program.steps = append(c.program.steps, s) }

// largeFirstSegment returns the size of the first segment if workload.MapSegments is called, which
// maps 32 times this size. That is twice the memory that the program needs, so no rank has to map
// more during the run.
func (c *composer) largeFirstSegment() int64 {
	need := (int64(c.config.Cases)*c.config.Elements + c.generator.limit) * elementBytes
	return (need/16 + workload.FirstSegment - 1) / workload.FirstSegment * workload.FirstSegment
}

// At every churnStride-th step, churn checks a block with an all-reduce, but less often if a round
// would have more than churnChecks checks.
const (
	churnStride = 8
	churnChecks = 64
)

// churn adds the random allocations and frees of a round, and checks of some live blocks.
func (c *composer) churn(round int) {
	stride := max(churnStride, c.config.Churn/churnChecks)
	for n := 1; n <= c.config.Churn; n++ {
		c.emit(step{action: doNoise})
		c.churnOnce()
		if block, ok := c.generator.pick(); ok && n%stride == 0 {
			c.numChecks++
			c.reduce([]liveBlock{block}, row{
				name: fmt.Sprintf("%d.churn%d", round, n), round: round, churn: true,
				group: c.numChecks % c.config.Groups,
				value: float64(maxValue + 1 + c.numChecks%maxValue),
			})
		}
	}
}

func (c *composer) churnOnce() {
	slot := c.program.slots
	block, allocated := c.generator.step(slot)
	if !allocated {
		c.emit(step{action: doFree, slot: block.slot})
		return
	}
	c.emit(step{action: doOpen})
	c.alloc(block.elements)
	c.emit(step{action: doEnd})
}

// cases adds the steps for the cases of one group in one round.
func (c *composer) cases(round, group int) {
	var blocks []liveBlock
	c.emit(step{action: doOpen})
	for range c.config.Cases {
		c.emit(step{action: doNoise})
		elements := c.config.Elements
		blocks = append(blocks, liveBlock{slot: c.alloc(elements), elements: elements})
	}
	c.emit(step{action: doEnd})
	var rows []row
	for i := range blocks {
		c.numCases++
		rows = append(rows, row{
			name: fmt.Sprintf("%d.%d", round, i+1), round: round, group: group,
			value: float64(1 + (c.numCases-1)%maxValue),
		})
	}
	c.reduce(blocks, rows...)
	for _, b := range blocks {
		c.emit(step{action: doFree, slot: b.slot})
	}
}

// maxValue is the largest input value of a case. Sums over a few hundred ranks are then exact in
// float32. The checks of churn blocks use the next maxValue values.
const maxValue = 997

func (c *composer) reduce(blocks []liveBlock, rows ...row) {
	first := len(c.program.rows)
	for i, b := range blocks {
		rows[i].elements, rows[i].dataType, rows[i].reduceOp = b.elements, symmem.Float32, symmem.Sum
		c.config.setFormula(&rows[i], first+i)
		c.emit(step{action: doFill, slot: b.slot, row: first + i})
	}
	c.program.rows = append(c.program.rows, rows...)
	for i, b := range blocks {
		c.emit(step{action: doReduce, slot: b.slot, row: first + i})
	}
}

func (c *composer) freeLive() {
	for len(c.generator.live) > 0 {
		c.emit(step{action: doFree, slot: c.generator.release(len(c.generator.live) - 1).slot})
	}
}

func (c *composer) alloc(elements int64) int {
	slot := c.program.slots
	c.program.slots++
	c.emit(step{action: doAlloc, slot: slot, elements: elements})
	return slot
}
