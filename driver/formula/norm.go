package formula

import (
	"math"

	"symmem/driver"
	"symmem/internal/reduce"
)

// NormRow holds the results of a norm for one row, with elements as bits. NormCase.Want holds the
// results for all rows.
type NormRow struct {
	Residual  []uint16 // the residual after the call
	Output    []uint16 // the normalized row
	Quantized []uint8  // the normalized row in 8-bit floats; nil without quantization
	// Scales holds the scales that the call computes, one for the row or one for each group of
	// elements. It is nil if the call does not compute scales.
	Scales []float32
}

// Norm returns the results of a norm for one row, an RMSNorm: it adds the sums of the ranks'
// inputs to the residual, and divides the row by the root of its mean square. sums has the bits of
// the rounded sums. staticScale is the scale for driver.QuantStatic, and is ignored for other
// kinds.
//
// Conversions to float32 around products prevent fused multiply-adds, which round differently.
func Norm(
	n *driver.Norm, t driver.DataType, sums, residual, weight []uint16, staticScale float32,
) NormRow {
	decode := reduce.BFloat16Value
	round := reduce.BFloat16Bits
	if t == driver.Float16 {
		decode = reduce.Float16Value
		round = reduce.Float16Bits
	}

	encode := func(v float32) uint16 {
		if v != v { // NaN
			v = canonicalNaN
		}

		return round(v)
	}
	size := len(sums)
	r := NormRow{Residual: make([]uint16, size), Output: make([]uint16, size)}
	row := make([]float32, size) // the new residual, and then the output
	for i := range sums {
		r.Residual[i] = encode(decode(sums[i]) + decode(residual[i]))
		row[i] = decode(r.Residual[i])
	}

	meanSquare := float32(sumSquares(row) * float32(1/float32(size)))
	scale := 1 / float32(math.Sqrt(float64(meanSquare+n.Epsilon)))
	for i, v := range row {
		product := v * float32(decode(weight[i])+n.WeightBias)
		row[i] = decode(encode(float32(product) * scale))
		r.Output[i] = encode(row[i])
	}

	r.quantize(n.Quant, row, staticScale)
	return r
}

const (
	packSize     = driver.NormUnit // elements that a thread reads at once
	lanesPerWarp = 32              // a lane is a thread of a warp
	warpCount    = 16              // of the threads that normalize a row
)

// sumSquares returns the sum of the squares of a row's elements. It adds in the order of the GPU
// kernel: each thread adds the squares of its packs (runs of packSize elements), a tree adds the
// sums of the lanes of each warp, and another tree adds the sums of the warps.
func sumSquares(row []float32) float32 {
	var sums [warpCount][lanesPerWarp]float32
	for i, v := range row {
		thread := i / packSize % (warpCount * lanesPerWarp)
		sum := &sums[thread/lanesPerWarp][thread%lanesPerWarp]
		// The square is exact in float64 (at most 22 bits), so this rounds like a fused multiply-add.
		*sum = float32(float64(v)*float64(v) + float64(*sum))
	}

	var totals [warpCount]float32 // the sum of each warp
	for w := range sums {
		for distance := lanesPerWarp / 2; distance > 0; distance /= 2 {
			for l := range distance {
				sums[w][l] += sums[w][l+distance]
			}
		}

		totals[w] = sums[w][0]
	}

	for distance := 1; distance < warpCount; distance *= 2 {
		for w := 0; w < warpCount; w += 2 * distance {
			totals[w] += totals[w+distance]
		}
	}

	return totals[0]
}

// quantize sets Quantized and Scales from the normalized row.
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

		factor := 1 / scale
		for _, v := range values {
			r.Quantized = append(r.Quantized, reduce.Float8Bits(v*factor))
		}
	}
}

// computeScale returns the scale that makes the largest magnitude the largest 8-bit float. Values
// below MinMagnitude do not count, so that the scale is never 0.
func computeScale(values []float32) float32 {
	largest := float32(0)
	for _, v := range values {
		if v != v { // NaN
			return canonicalNaN
		}

		largest = max(largest, float32(math.Abs(float64(v))))
	}

	return max(largest, float32(driver.MinMagnitude)) / driver.MaxE4M3
}
