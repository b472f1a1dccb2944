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
	"symmem/internal/reduce"
)

// TestDirectFormulaOfRanks compares the bits of reductions with the formula of the group computed
// on the host: for every type and operation, in symmetric and other memory, with random sizes and
// offsets, launched and replayed. Elements cancel out, and some are extreme.
func TestDirectFormulaOfRanks(t *testing.T) { proveFormula(t, driver.RankOrder, 2, 3, 4, 8) }

func TestDirectFormulaOfTrees(t *testing.T) { proveFormula(t, driver.Tree, 2, 4, 8) }

func TestDirectFormulaOfRoundedTrees(t *testing.T) { proveFormula(t, driver.RoundedTree, 2, 4, 8) }

// proveFormula tests a formula in groups of the given sizes.
func proveFormula(t *testing.T, f driver.Formula, ranks ...int) {
	t.Helper()
	draws := drawing(t)
	most, elements := int64(16<<20), 1<<20+7
	if soft(t) {
		most, elements = 1<<11, 1<<10+7
	}
	memory := 8*most + 1<<20
	p := newPitchOf(t, atMost(t, slices.Max(ranks)), memory, memory, draws)
	p.formula = f
	for _, n := range ranks {
		if n > len(p.opened) {
			continue
		}
		p.enroll(slices.Collect(upTo(n))...)
		began, before := time.Now(), p.tested
		for _, dataType := range reduce.DataTypes() {
			if f == driver.RankOrder || dataType.Float() || dataType == driver.Int32 {
				p.proveType(dataType, elements, most)
			}
		}
		t.Logf("%v of %d ranks: %d calls in %v", f, n, p.tested-before,
			time.Since(began).Round(time.Millisecond))
	}
}

// upTo yields the numbers below n.
func upTo(n int) func(yield func(int) bool) {
	return func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	}
}

// proveType tests all operations with a type.
func (p *pitch) proveType(t driver.DataType, elements int, most int64) {
	p.t.Helper()
	p.inputs = extremes(t, p.draws, len(p.ranks), elements)
	p.spreadInputs(t)
	p.orderMatters(t)
	for _, op := range driver.ReductionsOf(t) {
		if op.Kernel() == 0 {
			continue
		}
		p.reduced = formula.Reduce(p.formula, op, t, p.inputs)
		large := p.draws.IntN(2)
		for round, compared := 0, 0; round < 4 || compared < elements; round++ {
			b := batch{way: way{
				dataType: t, loose: round%2 == 1, inPlace: p.draws.IntN(2) == 0,
			}}
			operations := []driver.Operation{driver.AllReduce, driver.ReduceScatter, driver.Reduce}
			for _, i := range p.draws.Perm(len(operations)) {
				c := trial{operation: operations[i], op: op, root: p.draws.IntN(len(p.ranks))}
				if c.count = p.drawCount(c.operation, most); round == 2+large && len(b.trials) == 0 {
					c.count = p.mostOf(c.operation, most) - p.draws.Int64N(100)
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

// orderMatters checks that another order of additions would be detected.
func (p *pitch) orderMatters(t driver.DataType) {
	p.t.Helper()
	if !t.Float() || len(p.ranks) == 2 || p.formula != driver.RankOrder {
		return
	}
	backwards := slices.Clone(p.inputs)
	slices.Reverse(backwards)
	part := partThatDiffers(t, formula.Reduce(p.formula, driver.Sum, t, p.inputs),
		formula.Reduce(p.formula, driver.Sum, t, backwards))
	if part <= 0.1 {
		p.t.Fatalf("%v: only %.1f %% of the sums differ in reverse order", t, 100*part)
	}
}

// mostOf returns the largest count of an operation if a rank has room for most elements.
func (p *pitch) mostOf(o driver.Operation, most int64) int64 {
	if o == driver.ReduceScatter {
		return most / int64(len(p.ranks))
	}
	return most
}

// drawCount spreads counts over all magnitudes, up to an eighth of mostOf.
func (p *pitch) drawCount(o driver.Operation, most int64) int64 {
	return 1 + p.draws.Int64N(1<<p.draws.IntN(bits.Len64(uint64(p.mostOf(o, most)/8))))
}

// runReplayed captures the calls of a batch in a graph, and checks the output of its second launch.
func (p *pitch) runReplayed(b *batch) {
	p.t.Helper()
	if len(b.trials) == 0 {
		return
	}
	p.must(func(m *testRank) (err error) {
		send, recv := p.fields(m, b.way)
		if err := m.stream.BeginCapture(); err != nil {
			return err
		}
		for i := range b.trials {
			err = errors.Join(err, m.launch(m.stream, b.trials[i].call(m.rank, send, recv)))
		}
		g, end := m.stream.EndCapture()
		if err = errors.Join(err, end); err != nil {
			return fmt.Errorf("capturing %v: %w", &b.trials[0], err)
		}
		for range 2 {
			err = errors.Join(err, p.poison(m, b, send, recv), g.Launch(m.stream))
		}
		if err == nil {
			err = p.judge(m, b, true)
		}
		return errors.Join(err, g.Close())
	})
	p.tested += len(b.trials)
}

// extremes returns elements of all ranks: numbers that cancel except for a small rest, special
// values, random bits, and numbers near 1.
func extremes(t driver.DataType, draws *rand.Rand, ranks, elements int) [][]byte {
	inputs, ends := make([][]byte, ranks), special(t)
	for r := range inputs {
		inputs[r] = make([]byte, elements*t.Size())
	}
	for i := range elements {
		kind, up, down := draws.IntN(8), draws.IntN(ranks), draws.IntN(ranks)
		large := math.Ldexp(1+draws.Float64(), 5+draws.IntN(9))
		for r, in := range inputs {
			at := in[i*t.Size():][:t.Size()]
			switch {
			case kind == 0 || !t.Float():
				anyBits(at, draws)
			case kind == 1:
				putFloat(t, at, ends[draws.IntN(len(ends))])
			case kind < 4:
				putFloat(t, at, draws.Float64()*4-2)
			case r == up:
				putFloat(t, at, large)
			case r == down:
				putFloat(t, at, -large)
			default:
				putFloat(t, at, math.Ldexp(large, -rest(t)-draws.IntN(4))*(draws.Float64()-0.5))
			}
		}
	}
	return inputs
}

// rest returns the distance, in powers of two, between a large number and those that lose some bits
// when they are added to it.
func rest(t driver.DataType) int {
	if t == driver.Float64 {
		return 50
	}
	return 21
}

func anyBits(at []byte, draws *rand.Rand) {
	for i := range at {
		at[i] = byte(draws.Uint32())
	}
}

// special returns the smallest and largest numbers of a floating-point type, infinities and NaN.
func special(t driver.DataType) []float64 {
	ends := map[driver.DataType][2]float64{
		driver.Float64: {math.SmallestNonzeroFloat64, math.MaxFloat64},
		driver.Float32: {math.SmallestNonzeroFloat32, math.MaxFloat32},
		driver.Float16: {0x1p-24, 65504}, driver.BFloat16: {0x1p-133, 0x1.fep127},
	}[t]
	return []float64{
		math.NaN(), math.Inf(1), math.Inf(-1), 0, math.Copysign(0, -1), 1, -1, 3,
		ends[0], -ends[0], 5 * ends[0], -7 * ends[0], ends[1], -ends[1], ends[1] / 2,
	}
}

func putFloat(t driver.DataType, at []byte, v float64) {
	if t == driver.Float64 {
		binary.LittleEndian.PutUint64(at, math.Float64bits(v))
		return
	}
	put(t, at, 0, float32(v))
}

// TestLargeReductionsGoInPieces runs reductions outside windows that do not fit into exchange
// memory, launched and replayed. The software GPU is slow at that size, so it tests only one group,
// chosen at random.
func TestLargeReductionsGoInPieces(t *testing.T) {
	const part = 8<<20 + 1<<19 + 2 // bytes: more than fits into exchange memory
	draws := drawing(t)
	p, casts := newPitchOf(t, atMost(t, 4), 1<<20, 2*part+1<<20, draws), casts(t)
	if !full() && soft(t) {
		casts = casts[draws.IntN(len(casts)):][:1]
	}
	for _, members := range casts {
		p.enroll(members...)
		p.sow(driver.BFloat16)
		p.reduced = formula.Reduce(driver.RankOrder, driver.Sum, driver.BFloat16, p.inputs)
		for _, o := range []driver.Operation{driver.AllReduce, driver.ReduceScatter, driver.Reduce} {
			c := trial{operation: o, count: part / 2, root: 1}
			if o == driver.ReduceScatter {
				c.count = part / int64(len(members))
			}
			b := batch{way: way{dataType: driver.BFloat16, loose: true, inPlace: draws.IntN(2) == 0}}
			p.add(&b, c)
			p.inPieces(&b)
			p.run(&b, true)
			p.runReplayed(&b)
		}
	}
}

// inPieces checks that a call consists of several pieces, and that its remark mentions them.
func (p *pitch) inPieces(b *batch) {
	p.t.Helper()
	if len(b.trials) != 1 {
		p.t.Fatalf("%d calls fit, want 1", len(b.trials))
	}
	send, recv := p.fields(p.ranks[0], b.way)
	offer := p.ranks[0].group.Offer(b.trials[0].call(0, send, recv))
	remark := offer.(driver.Remarker).Remark(driver.PathDirect)
	if !strings.Contains(remark, "pieces") {
		p.t.Errorf("%v: %q", &b.trials[0], remark)
	}
}
