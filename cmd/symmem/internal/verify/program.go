package verify

import (
	"fmt"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
	"symmem/driver"
)

// action enumerates the kinds of steps.
type action uint8

const (
	doOpen   action = iota // open a scope for the world
	doEnd                  // end the scope, which registers new segments
	doAlloc                // allocate the slot's buffer in the scope
	doFree                 // free the slot's buffer
	doFill                 // write the row's values to the slot's buffer
	doReduce               // all-reduce the slot's buffer in the row's group, and check it
	doNoise                // make unrelated allocations, which differ between ranks
)

// step is one instruction of a program. slot is the number of a buffer. row is the index of a
// reported all-reduce.
type step struct {
	action   action
	slot     int
	row      int
	elements int64 // for doAlloc
}

// row describes a checked and reported all-reduce.
type row struct {
	name     string
	round    int
	group    int
	churn    bool
	elements int64
	value    float64
	dataType symmem.DataType
	reduceOp symmem.ReduceOp
	// If formula is set, inputs are drawn from seed, and bits are compared.
	formula driver.Formula
	seed    uint64
}

// program lists the steps that all ranks execute. It does not change after compose.
type program struct {
	steps []step
	rows  []row
	slots int // number of buffers over the whole run
	// first is the size of the pool's first segment in bytes.
	first int64
	// spread is set if 32 times that size is mapped before the first step.
	spread bool
}

// elementBytes is the size of a float32.
const elementBytes = 4

// composer builds a program.
type composer struct {
	config    Config
	program   program
	history   *history
	numCases  int // cases so far
	numChecks int // all-reduces of churn so far
}

// compose compiles a Config.
func compose(c Config) *program {
	w := &composer{config: c, history: newHistory(c.Seed, c.Elements)}
	w.program.first = workload.FirstSegment
	if c.Placement == symmem.PlaceByAddress {
		w.program.first, w.program.spread = w.spread(), true
	}
	for round := 1; round <= c.Rounds; round++ {
		w.churn(round)
		for group := range c.Groups {
			w.cases(round, group)
		}
		w.freeRest()
	}
	return &w.program
}

func (w *composer) emit(s step) { w.program.steps = append(w.program.steps, s) }

// spread returns a size in bytes. 32 times that size is twice the memory that the program needs.
// The size is rounded up to a multiple of the segment size. With that memory mapped, no rank needs
// to map more.
func (w *composer) spread() int64 {
	c := w.config
	need := (int64(c.Cases)*c.Elements + w.history.limit) * elementBytes
	return (need/16 + workload.FirstSegment - 1) / workload.FirstSegment * workload.FirstSegment
}

// churnStride is the minimum number of churn steps between checked all-reduces. churnChecks is the
// maximum number of checked all-reduces of churn in a round.
const (
	churnStride = 8
	churnChecks = 64
)

func (w *composer) churn(round int) {
	stride := max(churnStride, w.config.Churn/churnChecks)
	for n := 1; n <= w.config.Churn; n++ {
		w.emit(step{action: doNoise})
		w.churnOnce()
		if block, ok := w.history.pick(); ok && n%stride == 0 {
			w.numChecks++
			w.reduce([]liveBlock{block}, row{
				name: fmt.Sprintf("%d.churn%d", round, n), round: round, churn: true,
				group: w.numChecks % w.config.Groups,
				value: float64(maxValue + 1 + w.numChecks%maxValue),
			})
		}
	}
}

func (w *composer) churnOnce() {
	slot := w.program.slots
	block, allocated := w.history.step(slot)
	if !allocated {
		w.emit(step{action: doFree, slot: block.slot})
		return
	}
	w.emit(step{action: doOpen})
	w.alloc(block.elements)
	w.emit(step{action: doEnd})
}

// cases adds the cases of one group in one round. It allocates and fills all buffers before it
// reduces the first.
func (w *composer) cases(round, group int) {
	var blocks []liveBlock
	w.emit(step{action: doOpen})
	for range w.config.Cases {
		w.emit(step{action: doNoise})
		e := w.config.Elements
		blocks = append(blocks, liveBlock{slot: w.alloc(e), elements: e})
	}
	w.emit(step{action: doEnd})
	var rows []row
	for i := range blocks {
		w.numCases++
		rows = append(rows, row{
			name: fmt.Sprintf("%d.%d", round, i+1), round: round, group: group,
			value: float64(1 + (w.numCases-1)%maxValue),
		})
	}
	w.reduce(blocks, rows...)
	for _, b := range blocks {
		w.emit(step{action: doFree, slot: b.slot})
	}
}

// maxValue limits the values of cases. Values start at 1. Sums over some hundred ranks are then
// exact in float32. Churn uses larger values.
const maxValue = 997

// reduce adds steps that fill all blocks and then reduce each.
func (w *composer) reduce(blocks []liveBlock, rows ...row) {
	first := len(w.program.rows)
	for i, b := range blocks {
		rows[i].elements, rows[i].dataType, rows[i].reduceOp = b.elements, symmem.Float32, symmem.Sum
		w.config.setFormula(&rows[i], first+i)
		w.emit(step{action: doFill, slot: b.slot, row: first + i})
	}
	w.program.rows = append(w.program.rows, rows...)
	for i, b := range blocks {
		w.emit(step{action: doReduce, slot: b.slot, row: first + i})
	}
}

// freeRest adds steps that free the remaining blocks of churn.
func (w *composer) freeRest() {
	for len(w.history.live) > 0 {
		w.emit(step{action: doFree, slot: w.history.release(len(w.history.live) - 1).slot})
	}
}

// alloc adds a step that allocates a buffer in the next slot, and returns the slot.
func (w *composer) alloc(elements int64) int {
	slot := w.program.slots
	w.program.slots++
	w.emit(step{action: doAlloc, slot: slot, elements: elements})
	return slot
}
