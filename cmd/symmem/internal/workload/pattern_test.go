package workload

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"symmem"
	"symmem/driver"
	"symmem/internal/reduce"
)

var operations = []symmem.Operation{
	symmem.OpAllReduce, symmem.OpAllGather, symmem.OpReduceScatter, symmem.OpBroadcast,
	symmem.OpReduce, symmem.OpAllToAll, symmem.OpSend, symmem.OpAllGatherV,
	symmem.OpReduceScatterV, symmem.OpGather, symmem.OpScatter,
}

func drawPattern(t *rapid.T) *Pattern {
	ranks := rapid.IntRange(1, 9).Draw(t, "ranks")
	dataType := rapid.SampledFrom(reduce.DataTypes()).Draw(t, "type")
	return &Pattern{
		Operation: rapid.SampledFrom(operations).Draw(t, "operation"), DataType: dataType,
		ReduceOp: rapid.SampledFrom(driver.ReductionsOf(dataType)).Draw(t, "redop"),
		Count:    rapid.Int64Range(1, 3*period).Draw(t, "count"),
		Root:     rapid.IntRange(0, ranks-1).Draw(t, "root"), Ranks: ranks,
		Tag: rapid.Uint64().Draw(t, "tag"),
	}
}

func decodeAll(b []byte, t symmem.DataType) (all []float64) {
	for i := 0; i < len(b); i += t.Size() {
		all = append(all, Decode(b[i:], t))
	}
	return all
}

func TestInputsAndOutputsHaveExpectedElements(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPattern(t)
		rank := rapid.IntRange(0, p.Ranks-1).Draw(t, "rank")
		sent, received := p.SendRecvCounts(rank)
		in := p.Input(rank)
		for i, v := range decodeAll(in, p.DataType) {
			if want := p.inputValue(rank, int64(i)); v != want || v < 1 || v > maxSum {
				t.Fatalf("%+v: element %d of the input is %v, want %v, from 1 to %d", p, i, v, want, maxSum)
			}
		}
		if n := int64(len(in) / p.DataType.Size()); n != sent {
			t.Fatalf("%+v: the input has %d elements, want %d", p, n, sent)
		}
		out := p.Output(rank)
		if out == nil && p.Operation.HasRoot() && rank != p.Root {
			return // only the root has an output
		}
		if n := int64(len(out) / p.DataType.Size()); n != received {
			t.Fatalf("%+v: the output has %d elements, want %d", p, n, received)
		}
	})
}

func TestReductionsAreExactInAllTypes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPattern(t)
		p.Operation = symmem.OpAllReduce
		if p.Tolerance() > 0 {
			return // rounding is permitted
		}
		const checkedElements = 50
		for i := range min(p.Count, checkedElements) {
			want := p.reducedValue(i)
			got := Decode(Encode(nil, p.DataType, want), p.DataType)
			if got != want {
				t.Fatalf("%+v: element %d is %v, but %v represents it as %v", p, i, want, p.DataType, got)
			}
			if want > maxSum {
				t.Fatalf("%+v: element %d is %v, want at most %d", p, i, want, maxSum)
			}
		}
	})
}

// TestPartsMatchWholeOperation checks that the outputs of a reduce-scatter are the parts of an
// all-reduce, and that each rank of an all-to-all receives the right part of each input.
func TestPartsMatchWholeOperation(t *testing.T) {
	const ranks = 3
	p := Pattern{
		Operation: symmem.OpReduceScatter, DataType: symmem.Int32, ReduceOp: symmem.Sum,
		Count: 2*period + 17, Ranks: ranks, Tag: 5,
	}
	whole := p
	whole.Operation, whole.Count = symmem.OpAllReduce, p.Count*ranks
	var joined []byte
	for rank := range ranks {
		joined = append(joined, p.Output(rank)...)
	}
	if !bytes.Equal(joined, whole.Output(0)) {
		t.Error("the parts of the reduce-scatter differ from the all-reduce")
	}
	p.Operation = symmem.OpAllToAll
	for rank := range ranks {
		for peer := range ranks {
			got := decodeAll(p.Output(rank), p.DataType)[int64(peer)*p.Count]
			if want := p.inputValue(peer, int64(rank)*p.Count); got != want {
				t.Errorf("all-to-all: the first element that rank %d received from rank %d is %v, want %v",
					rank, peer, got, want)
			}
		}
	}
}

// TestForeignDataIsDetected compares an output with data that a faulty call could deliver.
func TestForeignDataIsDetected(t *testing.T) {
	p := Pattern{
		Operation: symmem.OpAllReduce, DataType: symmem.BFloat16, ReduceOp: symmem.Sum,
		Count: 4096, Ranks: 4, Tag: 1,
	}
	other := p
	other.Tag = 2
	inputOfRank1 := func(i int64) float64 { return p.inputValue(1, i) }
	for name, wrong := range map[string][]byte{
		"another call":          other.Output(0),
		"offset of 512 bytes":   p.encodeRange(256, p.Count, p.reducedValue),
		"offset of 2 MiB":       p.encodeRange(1<<20, p.Count, p.reducedValue),
		"offset of one element": p.encodeRange(1, p.Count, p.reducedValue),
		"data of one rank":      p.encodeRange(0, p.Count, inputOfRank1),
	} {
		minWrong := p.Count * 8 / 10 // a few elements have the right value by chance
		if d := compare(wrong, p.Output(0), p.DataType, 0); d.Wrong < minWrong {
			t.Errorf("%s: %d of %d elements are detected as wrong, want at least %d", name, d.Wrong,
				p.Count, minWrong)
		}
	}
}

func TestCompareReportsFirstDifference(t *testing.T) {
	p := Pattern{Operation: symmem.OpAllGather, DataType: symmem.Float16, Count: 100, Ranks: 2}
	want := p.Output(0)
	got := bytes.Clone(want)
	const size = 2 // of a float16
	copy(got[70*size:], Encode(nil, symmem.Float16, 119.5))
	copy(got[90*size:], Encode(nil, symmem.Float16, 0))
	d := compare(got, want, symmem.Float16, 0)
	wantDifference := Difference{Wrong: 2, First: 70, Got: 119.5, Want: p.inputValue(0, 70)}
	if d != wantDifference {
		t.Errorf("compare = %+v, want %+v", d, wantDifference)
	}
	if d := compare(want, want, symmem.Float16, 0); d != (Difference{}) {
		t.Errorf("compare of identical bytes = %+v, want no difference", d)
	}
}

func TestCompareToleratesRoundedAverages(t *testing.T) {
	p := Pattern{
		Operation: symmem.OpAllReduce, DataType: symmem.BFloat16, ReduceOp: symmem.Avg,
		Count: 10, Ranks: 3,
	}
	rounded := Encode(nil, symmem.BFloat16, 10.125)
	wrong := Encode(nil, symmem.BFloat16, 11)
	want := Encode(nil, symmem.BFloat16, 10)
	if d := compare(rounded, want, p.DataType, p.Tolerance()); d.Wrong != 0 {
		t.Errorf("compare with a rounding error = %+v, want no wrong element", d)
	}
	if d := compare(wrong, want, p.DataType, p.Tolerance()); d.Wrong != 1 {
		t.Errorf("compare with a value 10 %% too large = %+v, want a wrong element", d)
	}
	p.Ranks = 4
	if p.Tolerance() != 0 {
		t.Errorf("the tolerance for 4 ranks is %v, want 0", p.Tolerance())
	}
}
