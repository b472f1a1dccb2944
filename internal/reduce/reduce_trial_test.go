package reduce

import (
	"bytes"
	"fmt"
	"unsafe"
)

// trial is one call whose results are compared with those of a simple reference.
type trial struct {
	op                Op
	t                 DataType
	sources           [][]byte // all of the same size
	average           bool     // requires op Sum
	factor            float64  // of a scaled sum, or 0
	destinationCount  int
	inPlace           int // index of the source that is also the first destination, or -1
	misalignment      int // bytes between a line boundary and the first destination
	addedMisalignment int // bytes added for each further destination
	hint              Hint
}

func (tr trial) String() string {
	return fmt.Sprintf("%v %v: %d sources of %d bytes, %d destinations, average %v, in place %d, "+
		"%d+%d bytes off a line, %+v, factor %v", tr.op, tr.t, len(tr.sources), len(tr.sources[0]),
		tr.destinationCount, tr.average, tr.inPlace, tr.misalignment, tr.addedMisalignment, tr.hint,
		tr.factor)
}

func (tr trial) check(t testReporter, want []byte) {
	t.Helper()
	forEachLevel(func(name string) { tr.checkActive(t, name, want) })
}

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

func (tr trial) checkActive(t testReporter, name string, want []byte) {
	t.Helper()
	size := len(tr.sources[0])
	srcs, inputs := make([]unsafe.Pointer, 0, len(tr.sources)), make([]guarded, 0, len(tr.sources))
	var dsts []unsafe.Pointer
	var outputs []guarded
	for i, source := range tr.sources {
		g := newGuarded(size, (tr.misalignment+3*i*tr.t.Size())%lineBytes)
		copy(g.data, source)
		inputs, srcs = append(inputs, g), append(srcs, g.pointer())
	}
	for i := range tr.destinationCount {
		g := newGuarded(size, (tr.misalignment+i*tr.addedMisalignment)%lineBytes)
		if i == 0 && tr.inPlace >= 0 {
			g = inputs[tr.inPlace]
		}
		outputs, dsts = append(outputs, g), append(dsts, g.pointer())
	}
	switch count := size / tr.t.Size(); {
	case tr.factor != 0:
		ScaledSum(tr.t, dsts, srcs, count, tr.factor, tr.hint)
	case tr.average:
		Average(tr.t, dsts, srcs, count, tr.hint)
	default:
		Reduce(tr.op, tr.t, dsts, srcs, count, tr.hint)
	}
	tr.compare(t, name, inputs, outputs, want)
}

func (tr trial) compare(t testReporter, name string, inputs, outputs []guarded, want []byte) {
	t.Helper()
	for d, g := range outputs {
		if !g.intact() {
			t.Fatalf("%s: %v: bytes outside destination %d changed", name, tr, d)
		}
		if !bytes.Equal(g.data, want) {
			i := firstDifference(g.data, want) / tr.t.Size()
			t.Fatalf("%s: %v: destination %d element %d is %#x, want %#x", name, tr, d, i,
				get(tr.t, g.data, i), get(tr.t, want, i))
		}
	}
	for s, g := range inputs {
		if s != tr.inPlace && !bytes.Equal(g.data, tr.sources[s]) || !g.intact() {
			t.Fatalf("%s: %v: source %d changed", name, tr, s)
		}
	}
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
