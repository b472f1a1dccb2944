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

// TestPathsGiveSameResults reduces pairs of special numbers of each type on every path, and
// compares the results with the formula. Results of symmem must have the same bits. Results of
// NCCL may differ as described in docs/reference/deterministic.md.
func TestPathsGiveSameResults(t *testing.T) {
	runRanks(t, 2, symmem.Options{Path: symmem.PathAuto}, func(r *rank) {
		c := specialCase{rank: r}
		symmetric := r.pool()
		buffers := [][2]symmem.Memory{
			{r.alloc(symmetric, mib).Memory(), r.alloc(symmetric, mib).Memory()},
		}
		scope := symmetric.BeginDisabled() // allocates memory that is never registered
		defer scope.Abandon()
		plainSend, err := scope.Alloc(mib)
		r.ok(err)
		plainRecv, err := scope.Alloc(mib)
		r.ok(err)
		buffers = append(buffers, [2]symmem.Memory{plainSend.Memory(), plainRecv.Memory()})
		for _, choice := range []symmem.PathChoice{
			symmem.PathDirect, symmem.PathAuto, symmem.PathPlain, symmem.PathWindow,
		} {
			r.ok(r.World().SetPath(r.ctx, choice))
			for _, c.dataType = range bits.DataTypes() {
				for _, c.op = range driver.ReductionsOf(c.dataType) {
					if c.op.HasFactor() {
						continue // NCCL rounds products to the element type
					}
					for _, pair := range buffers {
						c.compare(choice, pair[0], pair[1])
					}
				}
			}
		}
	})
}

type specialCase struct {
	*rank
	dataType  symmem.DataType
	op        symmem.ReduceOp
	hasDirect bool // some call has taken the direct path
}

func (c *specialCase) compare(choice symmem.PathChoice, send, recv symmem.Memory) {
	const pairs = 14 * 14 // each float type has 14 special numbers
	in, size := make([][]byte, 2), c.dataType.Size()
	for r := range in {
		in[r] = formula.SpecialInput(c.dataType, r, pairs)
	}
	got, before := make([]byte, len(in[0])), c.World().Stats().Paths
	send, err := send.Slice(0, int64(len(got)))
	c.ok(err)
	recv, err = recv.Slice(0, int64(len(got)))
	c.ok(err)
	s := c.DefaultStream()
	c.ok(s.Copy(send, symmem.Host(in[c.Rank()])))
	err = c.World().AllReduce(c.ctx, send, recv, int64(len(got)/size), c.dataType, c.op, s)
	if c.Device().Backend == "nccl" && !c.op.IsSupportedEverywhere(c.dataType) && err != nil {
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
	call := driver.Call{Operation: driver.AllReduce, DataType: c.dataType, ReduceOp: c.op}
	if taken == "direct" {
		c.hasDirect = true
	} else if c.hasDirect && choice == symmem.PathAuto && call.IsFloatMinOrMax() {
		c.failf("%v of %v took the %s path, want direct", c.op, c.dataType, taken)
	}
	byNCCL := c.Device().Backend == "nccl" && taken != "direct"
	want := formula.Reduce(driver.RankOrder, c.op, c.dataType, in)
	mayDiffer := byNCCL && c.dataType.Float()
	for at := 0; at < len(got); at += size {
		a, b, g, w := in[0][at:at+size], in[1][at:at+size], got[at:at+size], want[at:at+size]
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
	case math.IsNaN(g) || math.IsNaN(w):
		compares := c.op == symmem.Min || c.op == symmem.Max
		return math.IsNaN(g) && math.IsNaN(w) ||
			compares && (math.IsNaN(x) && g == y || math.IsNaN(y) && g == x)
	case c.op == symmem.Avg:
		smallest := c.value(formula.AppendBits(nil, c.dataType, 1))
		return math.Abs(g-w) <= smallest
	}
	return g == w
}

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
