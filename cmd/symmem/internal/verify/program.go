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
	doOpen   action = iota // open a scope of the world
	doEnd                  // end the scope, which registers new segments
	doAlloc                // allocate the slot's buffer in the scope
	doFree                 // free the slot's buffer
	doFill                 // write the row's values to the slot's buffer
	doReduce               // all-reduce the slot's buffer in the row's group, and check it
	doNoise                // let the rank make unrelated allocations
)

// step represents an instruction of a program. slot numbers buffers, row numbers reported
// all-reduces.
type step struct {
	action   action
	slot     int
	row      int
	elements int64 // of doAlloc
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
	// If set, inputs are drawn from the seed, and bits are compared.
	formula driver.Formula
	seed    uint64
}

// program lists the steps that all ranks execute. It does not change after compose.
type program struct {
	steps []step
	rows  []row
	slots int // number of buffers over the whole run
	// first is the size of the pool's first segment in bytes; spread reports whether 32 times as
	// much is mapped before the first step.
	first  int64
	spread bool
}

// elementBytes is the size of a float32.
const elementBytes = 4

// composer writes a program.
type composer struct {
	config  Config
	program program
	history *history
	counted int // cases so far
	drawn   int // all-reduces of churn so far
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

// spread returns a 32nd of twice the memory that the program needs, in bytes, rounded up to
// segments. After mapping 32 times that, no rank maps any more.
func (w *composer) spread() int64 {
	c := w.config
	need := (int64(c.Cases)*c.Elements + w.history.most) * elementBytes
	return (need/16 + workload.FirstSegment - 1) / workload.FirstSegment * workload.FirstSegment
}

// churnStride is the number of churn steps between checked all-reduces; longer churns have
// churnChecks of them in a round.
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
			w.drawn++
			w.reduce([]holding{block}, row{
				name: fmt.Sprintf("%d.churn%d", round, n), round: round, churn: true,
				group: w.drawn % w.config.Groups, value: float64(maxValue + 1 + w.drawn%maxValue),
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

// cases adds the cases of one group in one round. All are allocated and filled before the first is
// reduced.
func (w *composer) cases(round, group int) {
	var blocks []holding
	w.emit(step{action: doOpen})
	for range w.config.Cases {
		w.emit(step{action: doNoise})
		e := w.config.Elements
		blocks = append(blocks, holding{slot: w.alloc(e), elements: e})
	}
	w.emit(step{action: doEnd})
	var rows []row
	for i := range blocks {
		w.counted++
		rows = append(rows, row{
			name: fmt.Sprintf("%d.%d", round, i+1), round: round, group: group,
			value: float64(1 + (w.counted-1)%maxValue),
		})
	}
	w.reduce(blocks, rows...)
	for _, b := range blocks {
		w.emit(step{action: doFree, slot: b.slot})
	}
}

// maxValue bounds values, so that sums over some hundred ranks are exact in float32. Cases use
// values from 1 to maxValue, churn uses larger ones.
const maxValue = 997

// reduce fills all blocks and then reduces each.
func (w *composer) reduce(blocks []holding, rows ...row) {
	first := len(w.program.rows)
	for i, b := range blocks {
		rows[i].elements, rows[i].dataType, rows[i].reduceOp = b.elements, symmem.Float32, symmem.Sum
		w.config.exactly(&rows[i], first+i)
		w.emit(step{action: doFill, slot: b.slot, row: first + i})
	}
	w.program.rows = append(w.program.rows, rows...)
	for i, b := range blocks {
		w.emit(step{action: doReduce, slot: b.slot, row: first + i})
	}
}

// freeRest frees the remaining blocks of churn, newest first.
func (w *composer) freeRest() {
	for len(w.history.live) > 0 {
		w.emit(step{action: doFree, slot: w.history.release(len(w.history.live) - 1).slot})
	}
}

// alloc allocates a buffer in the next slot.
func (w *composer) alloc(elements int64) int {
	slot := w.program.slots
	w.program.slots++
	w.emit(step{action: doAlloc, slot: slot, elements: elements})
	return slot
}
