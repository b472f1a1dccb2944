package reduce

import (
	"bytes"
	"fmt"
	"unsafe"
)

// trial is one call of Reduce, Average or ScaledSum. Its results are compared with those of a
// simple reference.
type trial struct {
	op                Op
	t                 DataType // of the elements
	sources           [][]byte // all of the same size
	average           bool     // calls Average; requires op Sum
	factor            float64  // if not 0, calls ScaledSum with this factor
	destinationCount  int
	inPlace           int // index of the source that is also the first destination, or notInPlace
	misalignment      int // bytes from a boundary of a cache line to the first destination
	addedMisalignment int // bytes added to misalignment for each further destination
	hint              Hint
}

// notInPlace is the value of trial.inPlace if no source is a destination.
const notInPlace = -1

// String describes a trial in messages, so that a failed one can be repeated.
func (tr trial) String() string {
	return fmt.Sprintf("%v %v: %d sources of %d bytes, %d destinations, average %v, in place %d, "+
		"%d+%d bytes off a line, %+v, factor %v", tr.op, tr.t, len(tr.sources), len(tr.sources[0]),
		tr.destinationCount, tr.average, tr.inPlace, tr.misalignment, tr.addedMisalignment, tr.hint,
		tr.factor)
}

// check compares the results of a trial with want. It tries the portable code and the vector code
// of each level, which is a set of instructions such as AVX2.
func (tr trial) check(t testReporter, want []byte) {
	t.Helper()
	forEachLevel(func(level string) { tr.checkLevel(t, level, want) })
}

// want returns the results of the reference.
func (tr trial) want() []byte {
	if tr.factor != 0 {
		return referenceSum(tr.t, tr.sources, tr.factor)
	}

	return reference(tr.op, tr.t, tr.sources, tr.average)
}

// testReporter is a *testing.T or a *rapid.T.
type testReporter interface {
	Helper()
	Fatalf(format string, args ...any)
}

// checkLevel checks the code of the active level, whose name it uses in messages.
func (tr trial) checkLevel(t testReporter, level string, want []byte) {
	t.Helper()
	size := len(tr.sources[0])
	var srcs, dsts []unsafe.Pointer
	var inputs, outputs []guarded // the memory of srcs and dsts
	for i, source := range tr.sources {
		// Sources differ in their misalignment, by 3 elements.
		g := newGuarded(size, (tr.misalignment+3*i*tr.t.Size())%lineBytes)
		copy(g.data, source)
		inputs = append(inputs, g)
		srcs = append(srcs, g.pointer())
	}

	for i := range tr.destinationCount {
		g := newGuarded(size, (tr.misalignment+i*tr.addedMisalignment)%lineBytes)
		if i == 0 && tr.inPlace != notInPlace {
			g = inputs[tr.inPlace]
		}

		outputs = append(outputs, g)
		dsts = append(dsts, g.pointer())
	}

	count := size / tr.t.Size()
	switch {
	case tr.factor != 0:
		ScaledSum(tr.t, dsts, srcs, count, tr.factor, tr.hint)
	case tr.average:
		Average(tr.t, dsts, srcs, count, tr.hint)
	default:
		Reduce(tr.op, tr.t, dsts, srcs, count, tr.hint)
	}

	tr.compare(t, level, inputs, outputs, want)
}

// compare checks that all outputs equal want, and that no other memory has changed.
func (tr trial) compare(t testReporter, level string, inputs, outputs []guarded, want []byte) {
	t.Helper()
	for d, g := range outputs {
		if !g.intact() {
			t.Fatalf("%s: %v: bytes outside destination %d changed", level, tr, d)
		}

		if !bytes.Equal(g.data, want) {
			i := firstDifference(g.data, want) / tr.t.Size()
			t.Fatalf("%s: %v: destination %d element %d is %#x, want %#x", level, tr, d, i,
				get(tr.t, g.data, i), get(tr.t, want, i))
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

// firstDifference returns the index of the first byte that differs, or len(a) if all are equal.
func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}

	return len(a)
}

// shortened returns the first count elements of each source.
func shortened(t DataType, sources [][]byte, count int) [][]byte {
	short := make([][]byte, len(sources))
	for i, source := range sources {
		short[i] = source[:count*t.Size()]
	}

	return short
}
