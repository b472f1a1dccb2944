package formula

import (
	"math"

	"symmem/driver"
	"symmem/internal/reduce"
)

// NormRow holds the results of a norm for one row. Floats of 16 and 8 bits are stored as bits.
type NormRow struct {
	Residual  []uint16  // the residual after the call
	Output    []uint16  // the normalized row
	Quantized []uint8   // the normalized row in 8-bit floats; nil without quantization
	Scales    []float32 // for the row or each group of elements; nil if the call computes none
}

// Norm returns the results of a norm for one row. sums holds the sums of the ranks' elements,
// rounded to type t. With an epsilon and a bias of 0:
//
//	sums      2 -2  2 -2
//	residual  1 -1  1 -1
//	Residual  3 -3  3 -3    sums + residual; the root mean square is 3
//	weight    2  2  1  1
//	Output    2 -2  1 -1    Residual / 3 * weight
func Norm(
	n *driver.Norm, t driver.DataType, sums, residual, weight []uint16, staticScale float32,
) NormRow {
	decode, bitsOf := reduce.BFloat16Value, reduce.BFloat16Bits
	if t == driver.Float16 {
		decode, bitsOf = reduce.Float16Value, reduce.Float16Bits
	}

	encode := func(v float32) uint16 {
		if isNaN(v) {
			return bitsOf(canonicalNaN)
		}

		return bitsOf(v)
	}
	size := len(sums)
	r := NormRow{Residual: make([]uint16, size), Output: make([]uint16, size)}
	row := make([]float32, size) // the new residual, then the output
	for i := range sums {
		r.Residual[i] = encode(decode(sums[i]) + decode(residual[i]))
		row[i] = decode(r.Residual[i])
	}

	inverseSize := 1 / float32(size)
	meanSquare := float32(sumSquares(row) * inverseSize) // float32 prevents a fused multiply-add
	inverseRMS := 1 / float32(math.Sqrt(float64(meanSquare+n.Epsilon)))
	for i, v := range row {
		r.Output[i] = encode(v * (decode(weight[i]) + n.WeightBias) * inverseRMS)
		row[i] = decode(r.Output[i])
	}

	r.quantize(n.Quant, row, staticScale)
	return r
}

func isNaN(v float32) bool { return v != v }

const (
	warpCount      = 16 // warps that share a row on a GPU
	threadsPerWarp = 32
)

// sumSquares adds the squares of a row in the order of the GPU kernel: first within each thread,
// then within each warp, then across warps.
func sumSquares(row []float32) float32 {
	var sums [warpCount][threadsPerWarp]float32
	for i, v := range row {
		unit := i / driver.NormUnit // consecutive elements that a thread reads at once
		thread := unit % (warpCount * threadsPerWarp)
		sum := &sums[thread/threadsPerWarp][thread%threadsPerWarp]
		// Like a fused multiply-add: float64 holds the square of a 16-bit float exactly.
		*sum = float32(float64(v)*float64(v) + float64(*sum))
	}

	var totals [warpCount]float32
	for w := range sums {
		totals[w] = addThreads(&sums[w])
	}

	// Add neighboring warps, then neighboring pairs: (w0 + w1) + (w2 + w3).
	for distance := 1; distance < warpCount; distance *= 2 {
		for w := 0; w < warpCount; w += 2 * distance {
			totals[w] += totals[w+distance]
		}
	}

	return totals[0]
}

// addThreads adds the sums of a warp in halves: 16 sums onto 16, then 8 onto 8.
func addThreads(sums *[threadsPerWarp]float32) float32 {
	for distance := threadsPerWarp / 2; distance > 0; distance /= 2 {
		for thread := range distance {
			sums[thread] += sums[thread+distance]
		}
	}

	return sums[0]
}

// quantize multiplies each element by the inverse of its scale, and rounds it to an 8-bit float.
func (r *NormRow) quantize(q driver.Quant, row []float32, staticScale float32) {
	if q == driver.QuantNone {
		return
	}

	groupSize := len(row) // of elements that share a scale
	if q == driver.QuantPerGroup {
		groupSize = driver.QuantGroup
	}

	for first := 0; first < len(row); first += groupSize {
		values := row[first : first+groupSize]
		scale := staticScale
		if q.ComputesScales() {
			scale = computeScale(values)
			r.Scales = append(r.Scales, scale)
		}

		inverseScale := 1 / scale
		for _, v := range values {
			r.Quantized = append(r.Quantized, reduce.Float8Bits(v*inverseScale))
		}
	}
}

// computeScale returns the scale that maps the largest magnitude to the largest 8-bit float.
func computeScale(values []float32) float32 {
	largest := float32(driver.MinMagnitude) // prevents a scale of 0
	for _, v := range values {
		if isNaN(v) {
			return canonicalNaN
		}

		largest = max(largest, float32(math.Abs(float64(v))))
	}

	return largest / driver.MaxE4M3
}
