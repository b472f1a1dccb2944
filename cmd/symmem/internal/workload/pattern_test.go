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

// drawPattern returns the random pattern of a valid call.
func drawPattern(t *rapid.T) *Pattern {
	ranks := rapid.IntRange(1, 9).Draw(t, "ranks")
	dataType := rapid.SampledFrom(reduce.DataTypes()).Draw(t, "type")
	return &Pattern{
		Operation: rapid.SampledFrom(operations).Draw(t, "operation"),
		DataType:  dataType,
		ReduceOp:  rapid.SampledFrom(driver.ReductionsOf(dataType)).Draw(t, "redop"),
		Count:     rapid.Int64Range(1, 3*period).Draw(t, "count"), // inputs repeat after a period
		Root:      rapid.IntRange(0, ranks-1).Draw(t, "root"),
		Ranks:     ranks,
		Tag:       rapid.Uint64().Draw(t, "tag"), // differs between calls
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
		wantSent, wantReceived := p.SendRecvCounts(rank)
		in := p.Input(rank)
		checkCount(t, p, "input", in, wantSent)
		for i, v := range decodeAll(in, p.DataType) {
			if want := p.inputValue(rank, int64(i)); v != want {
				t.Fatalf("%+v: element %d of the input is %v, want %v", p, i, v, want)
			}

			if v < 1 || v > maxSum {
				t.Fatalf("%+v: element %d of the input is %v, want 1 to %d", p, i, v, maxSum)
			}
		}

		out := p.Output(rank)
		mayLackOutput := p.Operation.HasRoot() && rank != p.Root
		if mayLackOutput && out == nil {
			return
		}

		checkCount(t, p, "output", out, wantReceived)
	})
}

// checkCount checks the number of elements in a buffer. name is "input" or "output".
func checkCount(t *rapid.T, p *Pattern, name string, buffer []byte, want int64) {
	t.Helper()
	count := int64(len(buffer) / p.DataType.Size())
	if count != want {
		t.Fatalf("%+v: the %s has %d elements, want %d", p, name, count, want)
	}
}

// Unless rounding is permitted, all types represent the results of an all-reduce exactly, so the
// order of additions does not matter.
func TestReductionsAreExactInAllTypes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPattern(t)
		p.Operation = symmem.OpAllReduce
		if p.Tolerance() > 0 {
			return // rounding is permitted
		}

		const checkedElements = 50 // arbitrary
		for i := range min(p.Count, checkedElements) {
			value := p.reducedValue(i)
			encoded := Encode(nil, p.DataType, value)
			if decoded := Decode(encoded, p.DataType); decoded != value {
				t.Fatalf("%+v: element %d is %v, but %v represents it as %v", p, i, value, p.DataType,
					decoded)
			}

			if value > maxSum {
				t.Fatalf("%+v: element %d is %v, want at most %d", p, i, value, maxSum)
			}
		}
	})
}

// The joined outputs of a reduce-scatter are the output of an all-reduce. In an all-to-all, each
// rank receives its part of each input.
func TestPartsMatchWholeOperation(t *testing.T) {
	const ranks = 3
	p := Pattern{
		Operation: symmem.OpReduceScatter, DataType: symmem.Int32, ReduceOp: symmem.Sum,
		Ranks: ranks,
		Tag:   5,             // arbitrary
		Count: 2*period + 17, // not a multiple of the period, so that parts differ
	}
	whole := p
	whole.Operation = symmem.OpAllReduce
	whole.Count = p.Count * ranks
	var joined []byte
	for rank := range ranks {
		joined = append(joined, p.Output(rank)...)
	}

	if !bytes.Equal(joined, whole.Output(0)) {
		t.Error("the parts of the reduce-scatter differ from the all-reduce")
	}

	p.Operation = symmem.OpAllToAll
	for rank := range ranks {
		received := decodeAll(p.Output(rank), p.DataType)
		for sender := range ranks {
			first := received[int64(sender)*p.Count] // of the part from the sender
			want := p.inputValue(sender, int64(rank)*p.Count)
			if first != want {
				t.Errorf("all-to-all: the first element that rank %d received from rank %d is %v, want %v",
					rank, sender, first, want)
			}
		}
	}
}

// Most elements of an output are wrong if a call delivers the data of another call or place.
func TestForeignDataIsDetected(t *testing.T) {
	p := Pattern{
		Operation: symmem.OpAllReduce, DataType: symmem.BFloat16, ReduceOp: symmem.Sum,
		Count: 4096, Ranks: 4, // arbitrary
		Tag: 1,
	}
	otherCall := p
	otherCall.Tag = p.Tag + 1
	// shifted returns the output without its first elements.
	shifted := func(elements int64) []byte {
		return p.encodeRange(elements, p.Count, p.reducedValue)
	}
	const elementBytes = 2 // of a bfloat16
	inputOfRank1 := func(i int64) float64 { return p.inputValue(1, i) }
	for name, wrong := range map[string][]byte{
		"another call":          otherCall.Output(0),
		"offset of 512 bytes":   shifted(512 / elementBytes),
		"offset of 2 MiB":       shifted(2 << 20 / elementBytes),
		"offset of one element": shifted(1),
		"data of one rank":      p.encodeRange(0, p.Count, inputOfRank1),
	} {
		const exact = 0                // permitted relative error
		minWrong := p.Count * 80 / 100 // 80 %; some elements have the right value by chance
		if d := compare(wrong, p.Output(0), p.DataType, exact); d.Wrong < minWrong {
			t.Errorf("%s: %d of %d elements are detected as wrong, want at least %d", name, d.Wrong,
				p.Count, minWrong)
		}
	}
}

func TestCompareReportsFirstDifference(t *testing.T) {
	const (
		exact        = 0 // permitted relative error
		elementBytes = 2 // of a float16

		firstIndex  = 70    // arbitrary
		firstValue  = 119.5 // wrong, because right values are positive integers
		secondIndex = 90
		secondValue = 0
	)
	p := Pattern{Operation: symmem.OpAllGather, DataType: symmem.Float16, Count: 100, Ranks: 2}
	output := p.Output(0)
	changed := bytes.Clone(output)
	copy(changed[firstIndex*elementBytes:], Encode(nil, symmem.Float16, firstValue))
	copy(changed[secondIndex*elementBytes:], Encode(nil, symmem.Float16, secondValue))
	want := Difference{
		Wrong: 2, First: firstIndex, Got: firstValue,
		Want: p.inputValue(0, firstIndex), // the output begins with the input of rank 0
	}
	if d := compare(changed, output, symmem.Float16, exact); d != want {
		t.Errorf("compare = %+v, want %+v", d, want)
	}

	if d := compare(output, output, symmem.Float16, exact); d != (Difference{}) {
		t.Errorf("compare of identical bytes = %+v, want no difference", d)
	}
}

// Averages over three ranks may be rounded. Those over four ranks are exact, because a division by
// four is exact in floating point.
func TestCompareToleratesRoundedAverages(t *testing.T) {
	p := Pattern{
		Operation: symmem.OpAllReduce, DataType: symmem.BFloat16, ReduceOp: symmem.Avg,
		Count: 10, Ranks: 3,
	}
	rounded := Encode(nil, symmem.BFloat16, 10.125) // 1 % too large
	wrong := Encode(nil, symmem.BFloat16, 11)       // 10 % too large
	want := Encode(nil, symmem.BFloat16, 10)
	if d := compare(rounded, want, p.DataType, p.Tolerance()); d.Wrong != 0 {
		t.Errorf("compare with a rounding error = %+v, want no wrong element", d)
	}

	if d := compare(wrong, want, p.DataType, p.Tolerance()); d.Wrong != 1 {
		t.Errorf("compare with a value that is 10 %% too large = %+v, want a wrong element", d)
	}

	p.Ranks = 4
	if p.Tolerance() != 0 {
		t.Errorf("the tolerance for 4 ranks is %v, want 0", p.Tolerance())
	}
}
