package verify

import (
	"math"
	"testing"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

// TestCompareCountsWrongElements compares the elements of an output with the value that all of them
// should have. MaxDiff and MeanDiff are the largest and the mean distance from that value.
func TestCompareCountsWrongElements(t *testing.T) {
	nan := float32(math.NaN())
	negativeInfinity := float32(math.Inf(-1))
	const undefined = math.MaxFloat32 // stands for a distance that no number describes
	for _, c := range []struct {
		name              string
		value             float64   // the right value of all elements
		data              []float32 // the elements found
		wantWrong         int64     // number of wrong elements
		wantMax, wantMean float64
	}{
		{"equal elements", 10, []float32{10, 10, 10}, 0, 0, 0},
		{"one wrong element", 10, []float32{10, 10, 7, 10}, 1, 3, 3. / 4},
		{"a rounding error", 1e6, []float32{1e6 + 1}, 0, 1, 1},
		{"values above and below", 10, []float32{12, 8}, 2, 2, 2},
		{"NaN", 1, []float32{nan}, 1, undefined, undefined},
		{"infinity", 1, []float32{negativeInfinity}, 1, undefined, undefined},
		{"zeros of fresh memory", 1, []float32{0, 0}, 2, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := finding{
				Completed: true, Wrong: c.wantWrong, MaxDiff: c.wantMax, MeanDiff: c.wantMean,
			}
			if got := compareWithValue(c.value, c.data...); got != want {
				t.Fatalf("comparing %v with %v: got %+v, want %+v", c.data, c.value, got, want)
			}
		})
	}
}

// compareWithValue compares elements that should all have the same value.
func compareWithValue(value float64, data ...float32) finding {
	var got []byte
	for _, v := range data {
		got = workload.Encode(got, symmem.Float32, float64(v))
	}

	want := workload.Encode(nil, symmem.Float32, value)
	p := &plannedCase{dataType: symmem.Float32}
	return p.compareWith(got, want, sumTolerance)
}

// inputElement returns an element of a rank's input in a case with the given value.
func inputElement(value float64, rank int) float64 {
	const unusedRanks = 0 // the number of ranks matters only with a formula
	p := &plannedCase{dataType: symmem.Float32, value: value, elements: 1}
	return workload.Decode(p.input(rank, unusedRanks), symmem.Float32)
}

// TestWrongContributionChangesSum checks that a sum is wrong if a rank contributes the input of
// another case. Cases have different values, and the value 0 is that of fresh memory.
func TestWrongContributionChangesSum(t *testing.T) {
	const ranks = 8
	const valueCount = 20 // enough for the values of neighboring cases
	for value := 1.0; value < valueCount; value++ {
		sum := expectedSum(value, ranks)
		for rank := range ranks {
			for other := 0.0; other < valueCount; other++ {
				changedSum := sum - inputElement(value, rank) + inputElement(other, rank)
				isWrong := compareWithValue(sum, float32(changedSum)).Wrong > 0
				wantWrong := other != value
				if isWrong != wantWrong {
					t.Fatalf("rank %d contributes the value %v instead of %v: the sum is wrong = %v, want %v",
						rank, other, value, isWrong, wantWrong)
				}
			}
		}
	}
}

// TestExpectedSum compares the formula for the sum with the sum of the inputs.
func TestExpectedSum(t *testing.T) {
	const value = 7
	for ranks := 1; ranks < 20; ranks++ {
		want := 0.0
		for rank := range ranks {
			want += inputElement(value, rank)
		}

		if got := expectedSum(value, ranks); got != want {
			t.Fatalf("expectedSum(%d, %d) = %v, want %v", value, ranks, got, want)
		}
	}
}
