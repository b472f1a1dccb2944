package reduce

import (
	"bytes"
	"fmt"
	"unsafe"
)

// trial is a call whose results are compared with those of simple reference code. If misalignment
// is 4 and addedMisalignment is 16, the destinations begin 4, 20, 36, ... bytes after the start of
// a cache line.
type trial struct {
	op                Op
	t                 DataType
	sources           [][]byte // all of the same size
	average           bool     // call Average; op must be Sum
	factor            float64  // if not 0, call ScaledSum
	destinationCount  int
	inPlace           int // source that is also the first destination, or notInPlace
	misalignment      int // of the first destination in a cache line, in bytes
	addedMisalignment int // for each further destination
	hint              Hint
}

const notInPlace = -1 // no source is a destination

func (tr trial) want() []byte {
	if tr.factor != 0 {
		return referenceSum(tr.t, tr.sources, tr.factor)
	}

	return reference(tr.op, tr.t, tr.sources, tr.average)
}

type testReporter interface {
	Helper()
	Fatalf(format string, args ...any)
}

// check makes the call at each level of vector instructions.
func (tr trial) check(t testReporter, want []byte) {
	t.Helper()
	forEachLevel(func(level string) {
		inputs := tr.newInputs()
		outputs := tr.newOutputs(inputs)
		tr.call(inputs, outputs)
		tr.compare(t, level, inputs, outputs, want)
	})
}

// newInputs returns copies of the sources between guard bytes.
func (tr trial) newInputs() []guarded {
	var inputs []guarded
	for i, source := range tr.sources {
		const addedElements = 3 // between the misalignments of sources, arbitrary
		misalignment := (tr.misalignment + addedElements*i*tr.t.Size()) % lineBytes
		g := newGuarded(len(source), misalignment)
		copy(g.data, source)
		inputs = append(inputs, g)
	}

	return inputs
}

func (tr trial) newOutputs(inputs []guarded) []guarded {
	size := len(tr.sources[0])
	var outputs []guarded
	for i := range tr.destinationCount {
		misalignment := (tr.misalignment + i*tr.addedMisalignment) % lineBytes
		g := newGuarded(size, misalignment)
		isInput := i == 0 && tr.inPlace != notInPlace
		if isInput {
			g = inputs[tr.inPlace]
		}

		outputs = append(outputs, g)
	}

	return outputs
}

func (tr trial) call(inputs, outputs []guarded) {
	srcs := pointers(inputs)
	dsts := pointers(outputs)
	count := len(tr.sources[0]) / tr.t.Size()
	switch {
	case tr.factor != 0:
		ScaledSum(tr.t, dsts, srcs, count, tr.factor, tr.hint)
	case tr.average:
		Average(tr.t, dsts, srcs, count, tr.hint)
	default:
		Reduce(tr.op, tr.t, dsts, srcs, count, tr.hint)
	}
}

func pointers(buffers []guarded) []unsafe.Pointer {
	var addresses []unsafe.Pointer
	for _, g := range buffers {
		addresses = append(addresses, g.pointer())
	}

	return addresses
}

func (tr trial) compare(t testReporter, level string, inputs, outputs []guarded, want []byte) {
	t.Helper()
	for d, g := range outputs {
		if !g.intact() {
			t.Fatalf("%s: %v: bytes outside destination %d changed", level, tr, d)
		}

		if !bytes.Equal(g.data, want) {
			i := firstDifference(g.data, want) / tr.t.Size() // element
			gotBits := get(tr.t, g.data, i)
			wantBits := get(tr.t, want, i)
			t.Fatalf("%s: %v: destination %d element %d is %#x, want %#x",
				level, tr, d, i, gotBits, wantBits)
		}
	}

	for s, g := range inputs {
		if !g.intact() {
			t.Fatalf("%s: %v: bytes outside source %d changed", level, tr, s)
		}

		isDestination := s == tr.inPlace
		if !isDestination && !bytes.Equal(g.data, tr.sources[s]) {
			t.Fatalf("%s: %v: source %d changed", level, tr, s)
		}
	}
}

func (tr trial) String() string {
	return fmt.Sprintf("%v %v: %d sources of %d bytes, %d destinations, average %v, in place %d, "+
		"%d+%d bytes off a line, %+v, factor %v", tr.op, tr.t, len(tr.sources), len(tr.sources[0]),
		tr.destinationCount, tr.average, tr.inPlace, tr.misalignment, tr.addedMisalignment, tr.hint,
		tr.factor)
}

func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}

	return len(a)
}

func shortened(t DataType, sources [][]byte, count int) [][]byte {
	short := make([][]byte, len(sources))
	for i, source := range sources {
		short[i] = source[:count*t.Size()]
	}

	return short
}
