package reduce

import (
	"math/rand/v2"
	"runtime"
	"testing"
)

// TestSubnormalsAreKeptOnAThreadThatFlushesThem is about torch.set_flush_denormal, which sets bits
// of MXCSR: flush to zero, and denormals are zero.
func TestSubnormalsAreKeptOnAThreadThatFlushesThem(t *testing.T) {
	const flushing = 0x1F80 | 1<<15 | 1<<6
	r := rand.New(rand.NewPCG(17, 18))
	for _, typ := range []DataType{Float32, Float64, Float16, BFloat16} {
		for _, op := range Ops() {
			sources := randomBuffers(r, typ, 3, 517)
			want := reference(op, typ, sources, 0)
			thirds := reference(Sum, typ, sources, 3)
			func() {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				was := setControl(flushing)
				defer setControl(was)
				tr := trial{op: op, t: typ, sources: sources, dsts: 2, inPlace: 1, staggered: 8}
				tr.check(t, want)
				tr.op, tr.divisor = Sum, 3
				tr.check(t, thirds)
				if now := setControl(flushing); now&^0x3F != flushing {
					t.Errorf("MXCSR is %#x, and was %#x", now, flushing)
				}
			}()
		}
	}
}
