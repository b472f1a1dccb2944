package verify

import (
	"math"
	"testing"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

func TestCompareCountsWrongElements(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		name      string
		data      []float32 // the elements found
		want      float64   // the right value of all elements
		wrong     int64     // wanted number of wrong elements
		max, mean float64   // wanted MaxDiff and MeanDiff
	}{
		{"equal elements", []float32{10, 10, 10}, 10, 0, 0, 0},
		{"one wrong element", []float32{10, 10, 7, 10}, 10, 1, 3, 0.75},
		{"a rounding error", []float32{1e6 + 1}, 1e6, 0, 1, 1},
		{"values above and below", []float32{12, 8}, 10, 2, 2, 2},
		{"NaN", []float32{nan}, 1, 1, math.MaxFloat32, math.MaxFloat32},
		{
			"infinity",
			[]float32{float32(math.Inf(-1))},
			1, 1,
			math.MaxFloat32, math.MaxFloat32,
		},
		{"zeros of fresh memory", []float32{0, 0}, 1, 2, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := finding{Completed: true, Wrong: c.wrong, MaxDiff: c.max, MeanDiff: c.mean}
			if got := compareWithValue(c.want, c.data...); got != want {
				t.Fatalf("comparing %v with %v: got %+v, want %+v", c.data, c.want, got, want)
			}
		})
	}
}

// compareWithValue compares elements that should all have the same value.
func compareWithValue(want float64, data ...float32) finding {
	got := make([]byte, 0, 4*len(data))
	for _, v := range data {
		got = workload.Encode(got, symmem.Float32, float64(v))
	}
	p := &plannedCase{dataType: symmem.Float32}
	return p.compareWith(got, workload.Encode(nil, symmem.Float32, want), sumTolerance)
}

// inputElement returns an element of a rank's input in a case with the given value.
func inputElement(value float64, rank int) float64 {
	const unusedRanks = 0 // the number of ranks matters only with a formula
	p := &plannedCase{dataType: symmem.Float32, value: value, elements: 1}
	return workload.Decode(p.input(rank, unusedRanks), symmem.Float32)
}

// TestWrongContributionChangesSum checks that a sum is wrong if a rank contributes the input of
// another case.
func TestWrongContributionChangesSum(t *testing.T) {
	const ranks = 8
	for value := 1.0; value < 20; value++ {
		for rank := range ranks {
			for other := 0.0; other < 20; other++ {
				sum := expectedSum(value, ranks) - inputElement(value, rank) + inputElement(other, rank)
				isWrong := compareWithValue(expectedSum(value, ranks), float32(sum)).Wrong > 0
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
	for ranks := 1; ranks < 20; ranks++ {
		sum := 0.0
		for rank := range ranks {
			sum += inputElement(7, rank)
		}
		if sum != expectedSum(7, ranks) {
			t.Fatalf("expectedSum(7, %d) = %v, want %v", ranks, expectedSum(7, ranks), sum)
		}
	}
}
