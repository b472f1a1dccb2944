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
		data      []float32
		want      float64
		wrong     int64
		max, mean float64
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
				t.Fatalf("got %+v, want %+v", got, want)
			}
		})
	}
}

func compareWithValue(want float64, data ...float32) finding {
	got := make([]byte, 0, 4*len(data))
	for _, v := range data {
		got = workload.Encode(got, symmem.Float32, float64(v))
	}
	w := &plannedCase{dataType: symmem.Float32}
	return w.compareWith(got, workload.Encode(nil, symmem.Float32, want), tolerance)
}

func inputElement(value float64, rank int) float64 {
	w := &plannedCase{dataType: symmem.Float32, value: value, elements: 1}
	return workload.Decode(w.input(rank, 0), symmem.Float32)
}

func TestWrongContributionChangesSum(t *testing.T) {
	const ranks = 8
	for value := 1.0; value < 20; value++ {
		for rank := range ranks {
			for other := 0.0; other < 20; other++ {
				sum := expectedSum(value, ranks) - inputElement(value, rank) + inputElement(other, rank)
				wrong := compareWithValue(expectedSum(value, ranks), float32(sum)).Wrong > 0
				if wrong == (other == value) {
					t.Fatalf("rank %d contributes %v instead of %v: wrong = %v",
						rank, other, value, wrong)
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
