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

const (
	specialRanks   = 2
	specialNumbers = 14 // such as NaN and -0
	specialPairs   = specialNumbers * specialNumbers
)

// Reductions of special numbers have the same bits on all paths, except that NCCL may deviate
// (docs/reference/deterministic.md): its maximum of 1 and NaN is 1.
func TestPathsGiveSameResults(t *testing.T) {
	runRanks(t, specialRanks, symmem.Options{Path: symmem.PathAuto}, func(r *rank) {
		c := specialCase{rank: r}
		type buffers struct{ send, recv symmem.Memory }
		pool := r.pool()
		registered := buffers{send: r.alloc(pool, mib).Memory(), recv: r.alloc(pool, mib).Memory()}
		disabled := pool.BeginDisabled() // allocates memory that is not registered
		defer disabled.Abandon()
		send, err := disabled.Alloc(mib)
		r.ok(err)
		recv, err := disabled.Alloc(mib)
		r.ok(err)
		notRegistered := buffers{send: send.Memory(), recv: recv.Memory()}
		// PathDirect comes before PathAuto to set c.hasDirect.
		for _, choice := range []symmem.PathChoice{
			symmem.PathDirect, symmem.PathAuto, symmem.PathPlain, symmem.PathWindow,
		} {
			r.ok(r.World().SetPath(r.ctx, choice))
			for _, reduction := range reductionsWithoutFactor() {
				c.reduction = reduction
				for _, memory := range []buffers{registered, notRegistered} {
					c.compare(choice, memory.send, memory.recv)
				}
			}
		}
	})
}

type reduction struct {
	dataType symmem.DataType
	op       symmem.ReduceOp
}

// reductionsWithoutFactor omits reductions with a factor because NCCL rounds their products to the
// element type.
func reductionsWithoutFactor() (all []reduction) {
	for _, dataType := range bits.DataTypes() {
		for _, op := range driver.ReductionsOf(dataType) {
			if !op.HasFactor() {
				all = append(all, reduction{dataType: dataType, op: op})
			}
		}
	}

	return all
}

type specialCase struct {
	*rank
	reduction
	hasDirect bool // a call has taken the direct path
}

func (c *specialCase) compare(choice symmem.PathChoice, send, recv symmem.Memory) {
	inputs := make([][]byte, specialRanks)
	for r := range inputs {
		inputs[r] = formula.SpecialInput(c.dataType, r, specialPairs)
	}

	isNCCL := c.Device().Backend == "nccl"
	got, path, err := c.allReduce(inputs[c.Rank()], send, recv)
	mayRefuse := isNCCL && !c.op.IsSupportedEverywhere(c.dataType)
	if mayRefuse && err != nil {
		c.wantErr(err, symmem.ErrUnsupported)
		return
	}

	c.ok(err)
	// PathAuto avoids NCCL's minimum and maximum, which ignore NaNs.
	call := driver.Call{Operation: driver.AllReduce, DataType: c.dataType, ReduceOp: c.op}
	needsDirect := c.hasDirect && choice == symmem.PathAuto && call.IsFloatMinOrMax()
	if needsDirect && path != "direct" {
		c.failf("%v of %v took the %s path, want direct", c.op, c.dataType, path)
	}

	c.hasDirect = c.hasDirect || path == "direct"
	mayDeviate := isNCCL && path != "direct" && c.dataType.Float()
	c.checkResult(inputs, got, path, mayDeviate)
}

// checkResult compares got with the formula, and allows deviations of NCCL if mayDeviate is set.
func (c *specialCase) checkResult(inputs [][]byte, got []byte, path string, mayDeviate bool) {
	want := formula.Reduce(driver.RankOrder, c.op, c.dataType, inputs)
	size := c.dataType.Size()
	for start := 0; start < len(got); start += size {
		end := start + size
		a := inputs[0][start:end]
		b := inputs[1][start:end]
		g := got[start:end]
		w := want[start:end]
		isOK := bytes.Equal(g, w) || (mayDeviate && c.isDeviationOfNCCL(a, b, g, w))
		if !isOK {
			c.failf("%s path: %v of %v %x and %x = %x, want %x", path, c.op, c.dataType, a, b, g, w)
		}
	}
}

// allReduce reduces input through send and recv. The error is that of AllReduce.
func (c *specialCase) allReduce(
	input []byte, send, recv symmem.Memory,
) (result []byte, path string, err error) {
	result = make([]byte, len(input))
	callsBefore := c.World().Stats().Paths // by path
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
	return result, c.pathTakenSince(callsBefore), nil
}

func (c *specialCase) pathTakenSince(callsBefore map[string]uint64) string {
	for path, calls := range c.World().Stats().Paths {
		if calls > callsBefore[path] {
			return path
		}
	}

	return ""
}

// isDeviationOfNCCL reports whether NCCL may return got instead of want for a and b.
func (c *specialCase) isDeviationOfNCCL(a, b, got, want []byte) bool {
	x := c.decode(a)
	y := c.decode(b)
	g := c.decode(got)
	w := c.decode(want)
	switch {
	case math.IsNaN(g) && math.IsNaN(w):
		return true // the bits of a NaN may differ
	case math.IsNaN(g) || math.IsNaN(w):
		// A minimum or maximum may ignore a NaN.
		isMinOrMax := c.op == symmem.Min || c.op == symmem.Max
		ignoresX := math.IsNaN(x) && g == y
		ignoresY := math.IsNaN(y) && g == x
		return isMinOrMax && (ignoresX || ignoresY)
	case c.op == symmem.Avg:
		// NCCL divides before it adds, so the last bit of a tiny number may differ.
		const bitsOfSmallest = 1
		smallest := c.decode(formula.AppendBits(nil, c.dataType, bitsOfSmallest))
		return math.Abs(g-w) <= smallest
	default:
		return g == w // the sign of a zero may differ
	}
}

func (c *specialCase) decode(element []byte) float64 {
	switch c.dataType {
	case symmem.Float64:
		return math.Float64frombits(binary.NativeEndian.Uint64(element))
	case symmem.Float32:
		return float64(math.Float32frombits(binary.NativeEndian.Uint32(element)))
	case symmem.Float16:
		return float64(bits.Float16Value(binary.NativeEndian.Uint16(element)))
	default: // BFloat16
		return float64(bits.BFloat16Value(binary.NativeEndian.Uint16(element)))
	}
}
