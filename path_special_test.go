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
	specialNumbers = 14 // for each float type: NaN, -0 and others
	specialPairs   = specialNumbers * specialNumbers
)

// On all paths, reductions of special numbers return the bits that a formula computes on the host.
// NCCL may differ (docs/reference/deterministic.md): its maximum of 1 and NaN is 1.
func TestPathsGiveSameResults(t *testing.T) {
	runRanks(t, specialRanks, symmem.Options{Path: symmem.PathAuto}, func(r *rank) {
		c := specialCase{rank: r}
		type buffers struct{ send, recv symmem.Memory }
		pool := r.pool()
		registered := buffers{send: r.alloc(pool, mib).Memory(), recv: r.alloc(pool, mib).Memory()}
		scope := pool.BeginDisabled() // its memory is not registered
		defer scope.Abandon()
		send, err := scope.Alloc(mib)
		r.ok(err)
		recv, err := scope.Alloc(mib)
		r.ok(err)
		notRegistered := buffers{send: send.Memory(), recv: recv.Memory()}
		// PathDirect comes first, because it sets tookDirect for PathAuto.
		for _, choice := range []symmem.PathChoice{
			symmem.PathDirect, symmem.PathAuto, symmem.PathPlain, symmem.PathWindow,
		} {
			r.ok(r.World().SetPath(r.ctx, choice))
			for _, reduction := range specialReductions() {
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

// specialReductions returns all reductions without a factor. NCCL rounds products with a factor to
// the element type.
func specialReductions() (all []reduction) {
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
	tookDirect bool // in any call so far
}

func (c *specialCase) compare(choice symmem.PathChoice, send, recv symmem.Memory) {
	inputs := make([][]byte, specialRanks)
	for r := range inputs {
		inputs[r] = formula.SpecialInput(c.dataType, r, specialPairs)
	}

	isNCCL := c.Device().Backend == "nccl"
	got, path, err := c.reduce(inputs[c.Rank()], send, recv)
	mayRefuse := isNCCL && !c.op.IsSupportedEverywhere(c.dataType)
	if mayRefuse && err != nil {
		c.wantErr(err, symmem.ErrUnsupported)
		return
	}

	c.ok(err)
	// PathAuto avoids NCCL's minimum and maximum, which ignore NaNs.
	call := driver.Call{Operation: driver.AllReduce, DataType: c.dataType, ReduceOp: c.op}
	needsDirect := c.tookDirect && choice == symmem.PathAuto && call.IsFloatMinOrMax()
	if needsDirect && path != "direct" {
		c.failf("%v of %v took the %s path, want direct", c.op, c.dataType, path)
	}

	c.tookDirect = c.tookDirect || path == "direct"
	mayDiffer := isNCCL && path != "direct" && c.dataType.Float()
	c.checkResult(inputs, got, path, mayDiffer)
}

// checkResult compares got with the formula. If mayDiffer is set, differences of NCCL are allowed.
func (c *specialCase) checkResult(inputs [][]byte, got []byte, path string, mayDiffer bool) {
	want := formula.Reduce(driver.RankOrder, c.op, c.dataType, inputs)
	size := c.dataType.Size()
	for start := 0; start < len(got); start += size {
		end := start + size
		a := inputs[0][start:end]
		b := inputs[1][start:end]
		g := got[start:end]
		w := want[start:end]
		isOK := bytes.Equal(g, w) || (mayDiffer && c.isAllowed(a, b, g, w))
		if !isOK {
			c.failf("%s path: %v of %v %x and %x = %x, want %x", path, c.op, c.dataType, a, b, g, w)
		}
	}
}

// reduce all-reduces input through send and recv. It returns only errors of AllReduce.
func (c *specialCase) reduce(
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
	for name, calls := range c.World().Stats().Paths {
		if calls > callsBefore[name] {
			path = name
		}
	}

	return result, path, nil
}

// isAllowed reports whether NCCL may return got instead of want for a and b.
func (c *specialCase) isAllowed(a, b, got, want []byte) bool {
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
		// The last bits may differ, because NCCL divides before it adds.
		const lastBit = 1 // encodes the smallest positive number
		smallest := c.decode(formula.AppendBits(nil, c.dataType, lastBit))
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
