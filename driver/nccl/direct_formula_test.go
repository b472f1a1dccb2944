package nccl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/formula"
	"symmem/driver/nccl/kernels"
	"symmem/internal/reduce"
)

// TestDirectFormulaOfRanks compares reductions, bit by bit, with the group's formula as computed
// on the host. It covers every type and operation, symmetric and other memory, random sizes and
// offsets, and both launched and replayed calls. Some elements are extreme values, and many
// cancel out.
func TestDirectFormulaOfRanks(t *testing.T) { checkFormula(t, driver.RankOrder, 2, 3, 4, 8) }

func TestDirectFormulaOfTrees(t *testing.T) { checkFormula(t, driver.Tree, 2, 4, 8) }

func TestDirectFormulaOfRoundedTrees(t *testing.T) { checkFormula(t, driver.RoundedTree, 2, 4, 8) }

func checkFormula(t *testing.T, f driver.Formula, ranks ...int) {
	t.Helper()
	random := newRandom(t)
	maxElements, elements := int64(16<<20), 1<<20+7
	if usesSoftGPU(t) {
		maxElements, elements = 1<<11, 1<<10+7
	}

	memory := 8*maxElements + 1<<20
	p := newTestbedWithSizes(t, ranksUpTo(t, slices.Max(ranks)), memory, memory, random)
	p.formula = f
	for _, n := range ranks {
		if n > len(p.opened) {
			continue
		}

		p.regroupAndRegister(slices.Collect(upTo(n))...)
		begin, before := time.Now(), p.tested
		for _, dataType := range reduce.DataTypes() {
			if f == driver.RankOrder || dataType.Float() || dataType == driver.Int32 {
				p.checkFormulaOfType(dataType, elements, maxElements)
			}
		}

		t.Logf("%v of %d ranks: %d calls in %v", f, n, p.tested-before,
			time.Since(begin).Round(time.Millisecond))
	}
}

func upTo(n int) func(yield func(int) bool) {
	return func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	}
}

func (p *testbed) checkFormulaOfType(t driver.DataType, elements int, maxElements int64) {
	p.t.Helper()
	p.inputs = extremes(t, p.random, len(p.ranks), elements)
	p.fillInputs(t)
	p.checkOrderMatters(t)
	for _, op := range driver.ReductionsOf(t) {
		if !kernels.CanReduce(t, op) {
			continue
		}

		p.reduced = formula.Reduce(p.formula, op, t, p.inputs)
		large := p.random.IntN(2)
		for round, compared := 0, 0; round < 4 || compared < elements; round++ {
			b := batch{layout: layout{
				dataType: t, noWindow: round%2 == 1, inPlace: p.random.IntN(2) == 0,
			}}
			operations := []driver.Operation{driver.AllReduce, driver.ReduceScatter, driver.Reduce}
			for _, i := range p.random.Perm(len(operations)) {
				c := trial{operation: operations[i], op: op, root: p.random.IntN(len(p.ranks))}
				if c.count = p.drawCount(c.operation, maxElements); round == 2+large && len(b.trials) == 0 {
					c.count = p.maxCount(c.operation, maxElements) - p.random.Int64N(100)
				}

				if !p.add(&b, c) {
					compared += int(c.count)
				}
			}

			p.run(&b, true)
			p.runReplayed(&b)
		}
	}
}

// checkOrderMatters checks that the inputs can reveal a wrong order of additions: enough sums
// must depend on the order.
func (p *testbed) checkOrderMatters(t driver.DataType) {
	p.t.Helper()
	if !t.Float() || len(p.ranks) == 2 || p.formula != driver.RankOrder {
		return
	}

	reversed := slices.Clone(p.inputs)
	slices.Reverse(reversed)
	fraction := differingFraction(t, formula.Reduce(p.formula, driver.Sum, t, p.inputs),
		formula.Reduce(p.formula, driver.Sum, t, reversed))
	if fraction <= 0.1 {
		p.t.Fatalf("only %.1f %% of the %v sums change if ranks are added in reverse order, want more "+
			"than 10 %%", 100*fraction, t)
	}
}

// maxCount returns the largest count of an operation in buffers of maxElements.
func (p *testbed) maxCount(o driver.Operation, maxElements int64) int64 {
	if o == driver.ReduceScatter {
		return maxElements / int64(len(p.ranks))
	}

	return maxElements
}

// drawCount returns a random count of at most an eighth of maxCount. All orders of magnitude are
// equally likely.
func (p *testbed) drawCount(o driver.Operation, maxElements int64) int64 {
	return 1 + p.random.Int64N(1<<p.random.IntN(bits.Len64(uint64(p.maxCount(o, maxElements)/8))))
}

// runReplayed captures the calls of a batch in a graph, and checks the output of the graph's second
// launch.
func (p *testbed) runReplayed(b *batch) {
	p.t.Helper()
	if len(b.trials) == 0 {
		return
	}

	p.must(func(m *testRank) (err error) {
		send, recv := p.fields(m, b.layout)
		if err := m.stream.BeginCapture(); err != nil {
			return err
		}

		for i := range b.trials {
			err = errors.Join(err, m.launch(m.stream, b.trials[i].call(m.rank, send, recv)))
		}

		g, endErr := m.stream.EndCapture()
		if err = errors.Join(err, endErr); err != nil {
			return fmt.Errorf("capturing %v: %w", &b.trials[0], err)
		}

		for range 2 {
			err = errors.Join(err, p.prepareOutputs(m, b, send, recv), g.Launch(m.stream))
		}

		if err == nil {
			err = p.checkOutputs(m, b, true)
		}

		return errors.Join(err, g.Close())
	})
	p.tested += len(b.trials)
}

// extremes returns the elements of all ranks. Some are numbers that almost cancel out, and the
// others are special values, random bits, and numbers near 1.
func extremes(t driver.DataType, random *rand.Rand, ranks, elements int) [][]byte {
	inputs, specials := make([][]byte, ranks), special(t)
	for r := range inputs {
		inputs[r] = make([]byte, elements*t.Size())
	}

	for i := range elements {
		kind, up, down := random.IntN(8), random.IntN(ranks), random.IntN(ranks)
		large := math.Ldexp(1+random.Float64(), 5+random.IntN(9))
		for r, in := range inputs {
			at := in[i*t.Size():][:t.Size()]
			switch {
			case kind == 0 || !t.Float():
				putRandomBits(at, random)
			case kind == 1:
				putFloat(t, at, specials[random.IntN(len(specials))])
			case kind < 4:
				putFloat(t, at, random.Float64()*4-2)
			case r == up:
				putFloat(t, at, large)
			case r == down:
				putFloat(t, at, -large)
			default:
				putFloat(t, at, math.Ldexp(large, -absorbedExponent(t)-random.IntN(4))*(random.Float64()-0.5))
			}
		}
	}

	return inputs
}

// absorbedExponent returns the smallest difference between the exponents of two numbers at which
// their sum loses bits of the smaller number.
func absorbedExponent(t driver.DataType) int {
	if t == driver.Float64 {
		return 50
	}

	return 21
}

func putRandomBits(at []byte, random *rand.Rand) {
	for i := range at {
		at[i] = byte(random.Uint32())
	}
}

// special returns infinities, NaN, and the smallest and largest numbers of a floating-point type.
func special(t driver.DataType) []float64 {
	limits := map[driver.DataType][2]float64{
		driver.Float64: {math.SmallestNonzeroFloat64, math.MaxFloat64},
		driver.Float32: {math.SmallestNonzeroFloat32, math.MaxFloat32},
		driver.Float16: {0x1p-24, 65504}, driver.BFloat16: {0x1p-133, 0x1.fep127},
	}[t]
	return []float64{
		math.NaN(), math.Inf(1), math.Inf(-1), 0, math.Copysign(0, -1), 1, -1, 3,
		limits[0], -limits[0], 5 * limits[0], -7 * limits[0], limits[1], -limits[1], limits[1] / 2,
	}
}

func putFloat(t driver.DataType, at []byte, v float64) {
	if t == driver.Float64 {
		binary.LittleEndian.PutUint64(at, math.Float64bits(v))
		return
	}

	putElement(t, at, 0, float32(v))
}

// TestLargeReductionsGoInPieces launches and replays reductions that do not fit into exchange
// memory, with buffers outside windows. Because the software GPU is slow at that size, only one
// randomly chosen group is tested there.
func TestLargeReductionsGoInPieces(t *testing.T) {
	const part = 8<<20 + 1<<19 + 2 // in bytes; does not fit into exchange memory
	random := newRandom(t)
	p := newTestbedWithSizes(t, ranksUpTo(t, 4), 1<<20, 2*part+1<<20, random)
	memberLists := memberLists(t)
	if !runsAllCases() && usesSoftGPU(t) {
		memberLists = memberLists[random.IntN(len(memberLists)):][:1]
	}

	for _, members := range memberLists {
		p.regroupAndRegister(members...)
		p.drawInputs(driver.BFloat16)
		p.reduced = formula.Reduce(driver.RankOrder, driver.Sum, driver.BFloat16, p.inputs)
		for _, o := range []driver.Operation{driver.AllReduce, driver.ReduceScatter, driver.Reduce} {
			c := trial{operation: o, count: part / 2, root: 1}
			if o == driver.ReduceScatter {
				c.count = part / int64(len(members))
			}

			b := batch{layout: layout{
				dataType: driver.BFloat16, noWindow: true, inPlace: random.IntN(2) == 0,
			}}
			p.add(&b, c)
			p.checkPieces(&b)
			p.run(&b, true)
			p.runReplayed(&b)
		}
	}
}

// checkPieces checks that a batch has only one call, and that the remark for this call mentions
// pieces.
func (p *testbed) checkPieces(b *batch) {
	p.t.Helper()
	if len(b.trials) != 1 {
		p.t.Fatalf("the batch has %d calls, want 1", len(b.trials))
	}

	send, recv := p.fields(p.ranks[0], b.layout)
	offer := p.ranks[0].group.Offer(b.trials[0].call(0, send, recv))
	remark := offer.(driver.Remarker).Remark(driver.PathDirect)
	if !strings.Contains(remark, "pieces") {
		p.t.Errorf("Remark for %v = %q, want a mention of pieces", &b.trials[0], remark)
	}
}
