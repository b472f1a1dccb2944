package soak

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"symmem"
	"symmem/driver"
	"symmem/internal/reduce"
)

// drawPattern draws a call of a group of up to 9 ranks.
func drawPattern(t *rapid.T) *pattern {
	ranks := rapid.IntRange(1, 9).Draw(t, "ranks")
	return &pattern{
		operation: rapid.SampledFrom(operations).Draw(t, "operation"),
		dataType:  rapid.SampledFrom(reduce.DataTypes()).Draw(t, "type"),
		reduceOp:  symmem.ReduceOp(rapid.IntRange(0, driver.ReduceOps-1).Draw(t, "redop")),
		count:     rapid.Int64Range(1, 3*period).Draw(t, "count"),
		root:      rapid.IntRange(0, ranks-1).Draw(t, "root"), ranks: ranks,
		tag: rapid.Uint64().Draw(t, "tag"),
	}
}

// elements reads all elements.
func elements(b []byte, t symmem.DataType) (all []float64) {
	for i := 0; i < len(b); i += t.Size() {
		all = append(all, decode(b[i:], t))
	}
	return all
}

func TestInputsAndOutputsAreTheValuesOfTheirElements(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPattern(t)
		rank := rapid.IntRange(0, p.ranks-1).Draw(t, "rank")
		sent, received := p.spans()
		for i, v := range elements(p.input(rank), p.dataType) {
			if want := p.sent(rank, int64(i)); v != want || v < 1 || v > most {
				t.Fatalf("%+v: element %d of the input is %v, want %v", p, i, v, want)
			}
		}
		if n := int64(len(p.input(rank)) / p.dataType.Size()); n != sent {
			t.Fatalf("%+v: the input has %d elements, want %d", p, n, sent)
		}
		out := p.output(rank)
		if out == nil && p.operation == symmem.OpReduce && rank != p.root {
			return
		}
		if n := int64(len(out) / p.dataType.Size()); n != received {
			t.Fatalf("%+v: the output has %d elements, want %d", p, n, received)
		}
	})
}

func TestSumsAreExactInEveryType(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPattern(t)
		p.operation = symmem.OpAllReduce
		if p.tolerance() > 0 {
			return
		}
		for i := range min(p.count, 50) {
			want := p.reduced(i)
			got := decode(encode(nil, p.dataType, want), p.dataType)
			if got != want || want > most {
				t.Fatalf("%+v: element %d is %v, which %v holds as %v", p, i, want, p.dataType, got)
			}
		}
	})
}

func TestScatteredAndGatheredPartsAreThoseOfTheWhole(t *testing.T) {
	p := pattern{
		operation: symmem.OpReduceScatter, dataType: symmem.Int32, reduceOp: symmem.Sum,
		count: 2*period + 17, ranks: 3, tag: 5,
	}
	whole := p
	whole.operation, whole.count = symmem.OpAllReduce, p.count*3
	var joined []byte
	for rank := range 3 {
		joined = append(joined, p.output(rank)...)
	}
	if !bytes.Equal(joined, whole.output(0)) {
		t.Error("the parts of a reduce-scatter are not the all-reduce")
	}
	p.operation = symmem.OpAllToAll
	for rank := range 3 {
		for from := range 3 {
			got := elements(p.output(rank), p.dataType)[int64(from)*p.count]
			if want := p.sent(from, int64(rank)*p.count); got != want {
				t.Errorf("rank %d has %v of rank %d, want %v", rank, got, from, want)
			}
		}
	}
}

func TestAnotherCallRankOrPlaceShows(t *testing.T) {
	p := pattern{
		operation: symmem.OpAllReduce, dataType: symmem.BFloat16, reduceOp: symmem.Sum,
		count: 4096, ranks: 4, tag: 1,
	}
	other := p
	other.tag = 2
	for name, wrong := range map[string][]byte{
		"another call":       other.output(0),
		"512 bytes on":       p.tile(nil, 256, p.count, p.reduced),
		"2 MiB on":           p.tile(nil, 1<<20, p.count, p.reduced),
		"one element on":     p.tile(nil, 1, p.count, p.reduced),
		"a rank is left out": p.tile(nil, 0, p.count, func(i int64) float64 { return p.sent(1, i) }),
	} {
		// Some elements are equal by chance; most are not.
		if d := compare(wrong, p.output(0), p.dataType, 0); d.wrong < p.count*8/10 {
			t.Errorf("%s: %d of %d elements are wrong", name, d.wrong, p.count)
		}
	}
}

func TestCompareSaysWhereAndWhat(t *testing.T) {
	p := pattern{operation: symmem.OpAllGather, dataType: symmem.Float16, count: 100, ranks: 2}
	want := p.output(0)
	got := bytes.Clone(want)
	copy(got[2*70:], encode(nil, symmem.Float16, 119.5))
	copy(got[2*90:], encode(nil, symmem.Float16, 0))
	d := compare(got, want, symmem.Float16, 0)
	if d.wrong != 2 || d.first != 70 || d.got != 119.5 || d.want != p.sent(0, 70) {
		t.Errorf("got %+v", d)
	}
	if d := compare(want, want, symmem.Float16, 0); d != (difference{}) {
		t.Errorf("equal bytes differ: %+v", d)
	}
}

func TestAveragesOfThreeMayRound(t *testing.T) {
	p := pattern{
		operation: symmem.OpAllReduce, dataType: symmem.BFloat16, reduceOp: symmem.Avg,
		count: 10, ranks: 3,
	}
	near := encode(nil, symmem.BFloat16, 10.125)
	far := encode(nil, symmem.BFloat16, 11)
	want := encode(nil, symmem.BFloat16, 10)
	if d := compare(near, want, p.dataType, p.tolerance()); d.wrong != 0 {
		t.Errorf("what rounding does is an error: %+v", d)
	}
	if d := compare(far, want, p.dataType, p.tolerance()); d.wrong != 1 {
		t.Errorf("a tenth more is no error: %+v", d)
	}
	if p.ranks = 4; p.tolerance() != 0 {
		t.Error("averages of four are exact, but have a tolerance")
	}
}
