package reduce

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"testing"
	"unsafe"
)

// TestSubnormalsAreKeptIfThreadFlushesThem sets the same two bits in MXCSR as
// torch.set_flush_denormal: one flushes subnormal results to zero, and the other treats subnormal
// operands as zero.
func TestSubnormalsAreKeptIfThreadFlushesThem(t *testing.T) {
	const flushing = 0x1F80 | 1<<15 | 1<<6
	r := rand.New(rand.NewPCG(17, 18))
	for _, typ := range []DataType{Float32, Float64, Float16, BFloat16} {
		for _, op := range ops(typ) {
			sources := randomBuffers(r, typ, 3, 517)
			want := reference(op, typ, sources, false)
			thirds := reference(Sum, typ, sources, true)
			halves := reference(Sum, typ, sources[:2], true)
			func() {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				previous := setControl(flushing)
				defer setControl(previous)
				tr := trial{
					op: op, t: typ, sources: sources, destinationCount: 2, inPlace: 1,
					addedMisalignment: 8,
				}
				tr.check(t, want)
				tr.op, tr.average = Sum, true
				tr.check(t, thirds)
				checkFlushedTree(t, typ, sources[:2], halves)
				if now := setControl(flushing); now&^0x3F != flushing {
					t.Errorf("MXCSR = %#x; want %#x", now, flushing)
				}
			}()
		}
	}
}

// checkFlushedTree compares the result of a tree of two sources, which does not depend on their
// order, with want.
func checkFlushedTree(t *testing.T, typ DataType, sources [][]byte, want []byte) {
	t.Helper()
	got := make([]byte, len(sources[0]))
	srcs := []unsafe.Pointer{unsafe.Pointer(&sources[0][0]), unsafe.Pointer(&sources[1][0])}
	dsts := []unsafe.Pointer{unsafe.Pointer(&got[0])}
	forEachLevel(func(name string) {
		Tree{DataType: typ, IsAverage: true}.Reduce(dsts, srcs, len(got)/typ.Size())
		if !bytes.Equal(got, want) {
			t.Errorf("%s: a tree of %v differs from the reference", name, typ)
		}
	})
}
