package verify

import "math"

// finding is what one rank found in one all-reduce.
type finding struct {
	// Ran is whether the all-reduce was done and its result read.
	Ran bool `json:"ran"`
	// Symmetric is whether the buffer lay in a window of the group.
	Symmetric bool `json:"symmetric"`
	// Wrong is the number of elements that are not as expected.
	Wrong int64 `json:"wrong"`
	// MaxDiff and MeanDiff are the largest and the mean distance from the expected value.
	MaxDiff  float64 `json:"max_diff"`
	MeanDiff float64 `json:"mean_diff"`
}

// fill is what a rank of a group contributes.
func fill(data []float32, value float64, rank int) {
	v := float32(value * float64(rank+1))
	for i := range data {
		data[i] = v
	}
}

// expected is the sum of what n ranks contribute.
func expected(value float64, n int) float64 { return value * float64(n) * float64(n+1) / 2 }

// tolerance is the relative error that is no mistake: sums over very many ranks round.
const tolerance = 1e-5

// compare checks every element.
func compare(data []float32, want float64) finding {
	f := finding{Ran: true}
	sum := 0.0
	for _, v := range data {
		diff := distance(float64(v), want)
		if diff > tolerance*max(want, 1) {
			f.Wrong++
		}
		f.MaxDiff = max(f.MaxDiff, diff)
		sum += diff
	}
	f.MeanDiff = sum / float64(max(len(data), 1))
	return f
}

// distance is |v - want|, or a large number where that is infinite or a NaN, which JSON does not
// have.
func distance(v, want float64) float64 {
	d := math.Abs(v - want)
	if math.IsNaN(d) || d > math.MaxFloat32 {
		return math.MaxFloat32
	}
	return d
}
