package verify

import (
	"math"
	"testing"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

func TestCompareCountsWrongElements(t *testing.T) {
	nan := float32(math.NaN())
	negativeInfinity := float32(math.Inf(-1))
	const unbounded = math.MaxFloat32 // difference from an infinity or NaN
	for _, c := range []struct {
		name     string
		value    float64 // right value of all elements
		data     []float32
		wrong    int64 // number of wrong elements
		maxDiff  float64
		meanDiff float64
	}{
		{name: "equal elements", value: 10, data: []float32{10, 10, 10}},
		{
			name: "one wrong element", value: 10, data: []float32{10, 10, 7, 10},
			wrong: 1, maxDiff: 3, meanDiff: 3. / 4,
		},
		{name: "tolerated error", value: 1e6, data: []float32{1e6 + 1}, maxDiff: 1, meanDiff: 1},
		{
			name: "values above and below", value: 10, data: []float32{12, 8},
			wrong: 2, maxDiff: 2, meanDiff: 2,
		},
		{
			name: "NaN", value: 1, data: []float32{nan},
			wrong: 1, maxDiff: unbounded, meanDiff: unbounded,
		},
		{
			name: "infinity", value: 1, data: []float32{negativeInfinity},
			wrong: 1, maxDiff: unbounded, meanDiff: unbounded,
		},
		{
			name: "zeros of fresh memory", value: 1, data: []float32{0, 0},
			wrong: 2, maxDiff: 1, meanDiff: 1,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := finding{
				Completed: true, Wrong: c.wrong, MaxDiff: c.maxDiff, MeanDiff: c.meanDiff,
			}
			if got := compareWithValue(c.value, c.data...); got != want {
				t.Fatalf("comparing %v with %v: got %+v, want %+v", c.data, c.value, got, want)
			}
		})
	}
}

// compareWithValue compares all elements of data with value.
func compareWithValue(value float64, data ...float32) finding {
	var got []byte
	for _, v := range data {
		got = workload.Encode(got, symmem.Float32, float64(v))
	}

	want := workload.Encode(nil, symmem.Float32, value)
	p := &plannedCase{dataType: symmem.Float32}
	return p.compareElements(got, want, sumTolerance)
}

// inputElement returns an element of a rank's input, whose elements are all equal.
func inputElement(value float64, rank int) float64 {
	const unusedRanks = 0 // only formulas use the number of ranks
	p := &plannedCase{dataType: symmem.Float32, value: value, elements: 1}
	return workload.Decode(p.input(rank, unusedRanks), symmem.Float32)
}

// A sum is wrong if one rank contributed its input of another case, or the zeros of fresh memory.
func TestWrongContributionChangesSum(t *testing.T) {
	const ranks = 8
	const valueCount = 20 // arbitrary
	for value := 1.0; value < valueCount; value++ {
		sum := expectedSum(value, ranks)
		for rank := range ranks {
			for other := 0.0; other < valueCount; other++ {
				removed := inputElement(value, rank)
				added := inputElement(other, rank)
				got := float32(sum - removed + added)
				isWrong := compareWithValue(sum, got).Wrong > 0
				wantWrong := other != value
				if isWrong != wantWrong {
					t.Fatalf("rank %d contributes the value %v instead of %v: the sum is wrong = %v, want %v",
						rank, other, value, isWrong, wantWrong)
				}
			}
		}
	}
}

func TestExpectedSum(t *testing.T) {
	const value = 7
	const maxRanks = 20 // arbitrary
	for ranks := 1; ranks <= maxRanks; ranks++ {
		want := 0.0
		for rank := range ranks {
			want += inputElement(value, rank)
		}

		if got := expectedSum(value, ranks); got != want {
			t.Fatalf("expectedSum(%d, %d) = %v, want %v", value, ranks, got, want)
		}
	}
}
