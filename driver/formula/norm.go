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

// Norm returns the results of a norm for one row. sums holds the sums of the ranks' elements,
// rounded to type t. staticScale is the scale for driver.QuantStatic. Other kinds of quantization
// ignore it. An example, with an epsilon and a bias of 0:
//
//	sums      2 -2  2 -2
//	residual  1 -1  1 -1
//	Residual  3 -3  3 -3    the sum of both; its root mean square is 3
//	weight    2  2  1  1
//	Output    2 -2  1 -1    Residual / 3 * weight
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
		if isNaN(v) {
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
	factor := 1 / float32(math.Sqrt(float64(meanSquare+n.Epsilon)))
	for i, v := range row {
		product := v * float32(decode(weight[i])+n.WeightBias)
		row[i] = decode(encode(float32(product) * factor))
		r.Output[i] = encode(row[i])
	}

	r.quantize(n.Quant, row, staticScale)
	return r
}

// isNaN reports whether v is a NaN. Only a NaN differs from itself.
func isNaN(v float32) bool { return v != v }

// The GPU kernel normalizes a row with 512 threads, in 16 warps of 32 threads.
const (
	warpCount      = 16
	threadsPerWarp = 32
	packSize       = driver.NormUnit // elements that a thread reads at once
)

// sumSquares returns the sum of the squares of a row's elements. It adds in the order of the GPU
// kernel. The elements are divided into packs of 8. Thread i adds the squares of packs i, i+512 and
// so on. Then the sums of the threads of each warp are added, and then the sums of the warps.
func sumSquares(row []float32) float32 {
	var sums [warpCount][threadsPerWarp]float32
	for i, v := range row {
		pack := i / packSize
		thread := pack % (warpCount * threadsPerWarp)
		sum := &sums[thread/threadsPerWarp][thread%threadsPerWarp]
		// The square is exact in float64 (at most 22 bits), so this rounds like a fused multiply-add.
		*sum = float32(float64(v)*float64(v) + float64(*sum))
	}

	var totals [warpCount]float32 // the sum of each warp
	for w := range sums {
		totals[w] = addThreads(&sums[w])
	}

	// Add neighboring warps, then neighboring pairs, and so on: (w0 + w1) + (w2 + w3).
	for distance := 1; distance < warpCount; distance *= 2 {
		for w := 0; w < warpCount; w += 2 * distance {
			totals[w] += totals[w+distance]
		}
	}

	return totals[0]
}

// addThreads adds up the sums of a warp's threads, and overwrites them. It adds the sums at
// distance 16, then the results at distance 8, and so on.
func addThreads(sums *[threadsPerWarp]float32) float32 {
	for distance := threadsPerWarp / 2; distance > 0; distance /= 2 {
		for thread := range distance {
			sums[thread] += sums[thread+distance]
		}
	}

	return sums[0]
}

// quantize sets Quantized and Scales from the normalized row. Each element is multiplied by the
// inverse of its scale, and rounded to an 8-bit float.
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
		if isNaN(v) {
			return canonicalNaN
		}

		largest = max(largest, float32(math.Abs(float64(v))))
	}

	return max(largest, float32(driver.MinMagnitude)) / driver.MaxE4M3
}
