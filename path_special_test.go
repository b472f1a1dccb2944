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

// A reduction of special numbers, such as NaN, infinity and -0, depends on details of the code that
// adds or compares them. For example, the maximum of 1 and NaN should be NaN, but is 1 in NCCL.
//
// Rank 0 contributes the first number of each pair of special numbers, and rank 1 the second. A
// formula computes the expected results on the host. Calls on each path must give the same bits.
// Results of NCCL may differ from them as described in docs/reference/deterministic.md.

// TestPathsGiveSameResults reduces pairs of special numbers with each type, operation and path.
func TestPathsGiveSameResults(t *testing.T) {
	runRanks(t, specialRanks, symmem.Options{Path: symmem.PathAuto}, func(r *rank) {
		c := specialCase{rank: r}
		type buffers struct{ send, recv symmem.Memory }
		pool := r.pool()
		registered := buffers{send: r.alloc(pool, mib).Memory(), recv: r.alloc(pool, mib).Memory()}
		scope := pool.BeginDisabled() // allocates memory that is never registered
		defer scope.Abandon()
		send, err := scope.Alloc(mib)
		r.ok(err)
		recv, err := scope.Alloc(mib)
		r.ok(err)
		notRegistered := buffers{send: send.Memory(), recv: recv.Memory()}
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

					c.dataType = dataType
					c.op = op
					for _, memory := range []buffers{registered, notRegistered} {
						c.compare(choice, memory.send, memory.recv)
					}
				}
			}
		}
	})
}

const (
	specialRanks = 2
	specialPairs = 14 * 14 // each float type has 14 special numbers
)

// specialCase compares reductions of one type and operation on one rank.
type specialCase struct {
	*rank
	dataType  symmem.DataType
	op        symmem.ReduceOp
	hasDirect bool // a call has taken the direct path
}

// compare reduces all pairs of special numbers. It fails the test if a result differs from the
// formula in a way that is not allowed. A backend may refuse an operation that it does not support.
func (c *specialCase) compare(choice symmem.PathChoice, send, recv symmem.Memory) {
	inputs := make([][]byte, specialRanks)
	for r := range inputs {
		inputs[r] = formula.SpecialInput(c.dataType, r, specialPairs)
	}

	got, path, err := c.reduce(inputs[c.Rank()], send, recv)
	mayRefuse := c.Device().Backend == "nccl" && !c.op.IsSupportedEverywhere(c.dataType)
	if mayRefuse && err != nil {
		c.wantErr(err, symmem.ErrUnsupported)
		return
	}

	c.ok(err)
	// NCCL's minimum ignores NaNs, so PathAuto must prefer the direct path if there is one.
	call := driver.Call{Operation: driver.AllReduce, DataType: c.dataType, ReduceOp: c.op}
	needsDirect := c.hasDirect && choice == symmem.PathAuto && call.IsFloatMinOrMax()
	if needsDirect && path != "direct" {
		c.failf("%v of %v took the %s path, want direct", c.op, c.dataType, path)
	}

	c.hasDirect = c.hasDirect || path == "direct"
	byNCCL := c.Device().Backend == "nccl" && path != "direct"
	mayDiffer := byNCCL && c.dataType.Float()
	want := formula.Reduce(driver.RankOrder, c.op, c.dataType, inputs)
	size := c.dataType.Size()
	for at := 0; at < len(got); at += size {
		end := at + size
		a := inputs[0][at:end]
		b := inputs[1][at:end]
		g := got[at:end]
		w := want[at:end]
		if bytes.Equal(g, w) || mayDiffer && c.isAllowed(a, b, g, w) {
			continue
		}

		c.failf("%s path: %v of %v %x and %x = %x, want %x", path, c.op, c.dataType, a, b, g, w)
	}
}

// reduce all-reduces the input of this rank in the given memory. It returns the result and the path
// that the call took. An error is that of the call: other errors fail the test.
func (c *specialCase) reduce(
	input []byte, send, recv symmem.Memory,
) (result []byte, path string, err error) {
	result = make([]byte, len(input))
	before := c.World().Stats().Paths
	send, err = send.Slice(0, int64(len(input)))
	c.ok(err)
	recv, err = recv.Slice(0, int64(len(input)))
	c.ok(err)
	s := c.DefaultStream()
	c.ok(s.Copy(send, symmem.Host(input)))
	count := int64(len(input) / c.dataType.Size())
	err = c.World().AllReduce(c.ctx, send, recv, count, c.dataType, c.op, s)
	if err != nil {
		return nil, "", err
	}

	c.ok(s.Copy(symmem.Host(result), recv))
	c.synchronize()
	for name, calls := range c.World().Stats().Paths {
		if calls > before[name] {
			path = name
		}
	}

	return result, path, nil
}

// isAllowed reports whether got, NCCL's result for a and b, may differ from want. It may differ in
//
//   - the bits of a NaN
//   - the sign of a zero
//   - a minimum or maximum, which ignores a NaN
//   - the last bits of an average, because NCCL divides before it adds.
func (c *specialCase) isAllowed(a, b, got, want []byte) bool {
	x := c.value(a)
	y := c.value(b)
	g := c.value(got)
	w := c.value(want)
	switch {
	case math.IsNaN(g) && math.IsNaN(w):
		return true // with other bits
	case math.IsNaN(g) || math.IsNaN(w):
		isMinOrMax := c.op == symmem.Min || c.op == symmem.Max
		ignoresNaN := math.IsNaN(x) && g == y || math.IsNaN(y) && g == x
		return isMinOrMax && ignoresNaN
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
