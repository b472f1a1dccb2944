package symmem_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"symmem"
	"symmem/driver"
	"symmem/driver/formula"
	bits "symmem/internal/reduce"
)

// TestPathsGiveSameResults reduces pairs of special numbers, such as NaN, infinity and -0, of each
// type on every path. It compares the results with the formula. Results of symmem must have the
// same bits. Results of NCCL may differ as described in docs/reference/deterministic.md.
func TestPathsGiveSameResults(t *testing.T) {
	runRanks(t, 2, symmem.Options{Path: symmem.PathAuto}, func(r *rank) {
		c := specialCase{rank: r}
		type pair struct{ send, recv symmem.Memory }
		symmetric := r.pool()
		inPool := pair{send: r.alloc(symmetric, mib).Memory(), recv: r.alloc(symmetric, mib).Memory()}
		scope := symmetric.BeginDisabled() // allocates memory that is never registered
		defer scope.Abandon()
		plainSend, err := scope.Alloc(mib)
		r.ok(err)
		plainRecv, err := scope.Alloc(mib)
		r.ok(err)
		notRegistered := pair{send: plainSend.Memory(), recv: plainRecv.Memory()}
		// PathDirect comes first, so that hasDirect is known when PathAuto is tried.
		for _, choice := range []symmem.PathChoice{
			symmem.PathDirect, symmem.PathAuto, symmem.PathPlain, symmem.PathWindow,
		} {
			r.ok(r.World().SetPath(r.ctx, choice))
			for _, dataType := range bits.DataTypes() {
				for _, op := range driver.ReductionsOf(dataType) {
					if op.HasFactor() {
						continue // NCCL rounds products to the element type
					}

					c.dataType, c.op = dataType, op
					for _, p := range []pair{inPool, notRegistered} {
						c.compare(choice, p.send, p.recv)
					}
				}
			}
		}
	})
}

// specialCase compares reductions of one type and operation on one rank.
type specialCase struct {
	*rank
	dataType  symmem.DataType
	op        symmem.ReduceOp
	hasDirect bool // some call has taken the direct path
}

// compare all-reduces all pairs of special numbers on a path, and fails the test if a result
// differs from the formula and the difference is not allowed. If the backend does not support the
// operation, compare accepts its error.
func (c *specialCase) compare(choice symmem.PathChoice, send, recv symmem.Memory) {
	const pairs = 14 * 14 // each float type has 14 special numbers
	const ranks = 2
	in, size := make([][]byte, ranks), c.dataType.Size()
	for r := range in {
		in[r] = formula.SpecialInput(c.dataType, r, pairs)
	}

	got := make([]byte, len(in[0]))
	before := c.World().Stats().Paths
	send, err := send.Slice(0, int64(len(got)))
	c.ok(err)
	recv, err = recv.Slice(0, int64(len(got)))
	c.ok(err)
	s := c.DefaultStream()
	c.ok(s.Copy(send, symmem.Host(in[c.Rank()])))
	err = c.World().AllReduce(c.ctx, send, recv, int64(len(got)/size), c.dataType, c.op, s)
	mayRefuse := c.Device().Backend == "nccl" && !c.op.IsSupportedEverywhere(c.dataType)
	if mayRefuse && err != nil {
		c.wantErr(err, symmem.ErrUnsupported)
		return
	}

	c.ok(err)
	c.ok(s.Copy(symmem.Host(got), recv))
	c.synchronize()
	taken := ""
	for path, n := range c.World().Stats().Paths {
		if n > before[path] {
			taken = path
		}
	}

	// NCCL's minimum ignores NaNs, so PathAuto must prefer the direct path if there is one.
	call := driver.Call{Operation: driver.AllReduce, DataType: c.dataType, ReduceOp: c.op}
	needsDirect := c.hasDirect && choice == symmem.PathAuto && call.IsFloatMinOrMax()
	if needsDirect && taken != "direct" {
		c.failf("%v of %v took the %s path, want direct", c.op, c.dataType, taken)
	}

	c.hasDirect = c.hasDirect || taken == "direct"
	byNCCL := c.Device().Backend == "nccl" && taken != "direct"
	want := formula.Reduce(driver.RankOrder, c.op, c.dataType, in)
	mayDiffer := byNCCL && c.dataType.Float()
	for at := 0; at < len(got); at += size {
		end := at + size
		a, b := in[0][at:end], in[1][at:end]
		g, w := got[at:end], want[at:end]
		if bytes.Equal(g, w) || mayDiffer && c.isAllowed(a, b, g, w) {
			continue
		}

		c.failf("%s path: %v of %v %x and %x = %x, want %x", taken, c.op, c.dataType, a, b, g, w)
	}
}

// isAllowed reports whether got, NCCL's result for a and b, differs from want only as documented:
// in the bits of a NaN, the sign of a zero, a minimum or maximum that ignores a NaN, or the last
// bits of an average, because NCCL divides before it adds.
func (c *specialCase) isAllowed(a, b, got, want []byte) bool {
	x, y, g, w := c.value(a), c.value(b), c.value(got), c.value(want)
	switch {
	case math.IsNaN(g) && math.IsNaN(w):
		return true // with other bits
	case math.IsNaN(g) || math.IsNaN(w):
		compares := c.op == symmem.Min || c.op == symmem.Max
		isOther := math.IsNaN(x) && g == y || math.IsNaN(y) && g == x // the number that is not NaN
		return compares && isOther
	case c.op == symmem.Avg:
		const lastBit = 1 // encodes the smallest positive number
		smallest := c.value(formula.AppendBits(nil, c.dataType, lastBit))
		return math.Abs(g-w) <= smallest
	}

	return g == w // 0 == -0
}

// value decodes an element of a float type.
func (c *specialCase) value(element []byte) float64 {
	switch c.dataType {
	case symmem.Float64:
		return math.Float64frombits(binary.NativeEndian.Uint64(element))
	case symmem.Float32:
		return float64(math.Float32frombits(binary.NativeEndian.Uint32(element)))
	case symmem.Float16:
		return float64(bits.Float16Value(binary.NativeEndian.Uint16(element)))
	default:
		return float64(bits.BFloat16Value(binary.NativeEndian.Uint16(element)))
	}
}
