package formula

import (
	"math"

	"symmem/driver"
	"symmem/internal/reduce"
)

// NormRow holds the results of a norm for one row. NormCase.Want concatenates those of all rows.
// Floats of 16 and 8 bits are stored as bits.
type NormRow struct {
	Residual  []uint16  // the residual after the call
	Output    []uint16  // the normalized row
	Quantized []uint8   // the normalized row in 8-bit floats; nil without quantization
	Scales    []float32 // for the row or each group of elements; nil if the call computes none
}

// Norm returns the results of a norm for one row. sums holds the sums of the ranks' elements,
// rounded to type t. Only driver.QuantStatic uses staticScale. With an epsilon and a bias of 0:
//
//	sums      2 -2  2 -2
//	residual  1 -1  1 -1
//	Residual  3 -3  3 -3    sums + residual; the root mean square is 3
//	weight    2  2  1  1
//	Output    2 -2  1 -1    Residual / 3 * weight
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
	row := make([]float32, size) // first the new residual, then the output
	for i := range sums {
		r.Residual[i] = encode(decode(sums[i]) + decode(residual[i]))
		row[i] = decode(r.Residual[i])
	}

	// The conversions to float32 prevent fused multiply-adds, which would round differently.
	meanSquare := float32(sumSquares(row) * float32(1/float32(size)))
	inverseRMS := 1 / float32(math.Sqrt(float64(meanSquare+n.Epsilon)))
	for i, v := range row {
		product := v * float32(decode(weight[i])+n.WeightBias)
		row[i] = decode(encode(float32(product) * inverseRMS))
		r.Output[i] = encode(row[i])
	}

	r.quantize(n.Quant, row, staticScale)
	return r
}

func isNaN(v float32) bool { return v != v }

const (
	warpCount      = 16 // warps that share a row on a GPU
	threadsPerWarp = 32
	packSize       = driver.NormUnit // elements that a thread reads at once
)

// sumSquares adds the squares of a row in the order of the GPU kernel: first within each thread,
// then within each warp, then across warps.
func sumSquares(row []float32) float32 {
	var sums [warpCount][threadsPerWarp]float32
	for i, v := range row {
		pack := i / packSize
		thread := pack % (warpCount * threadsPerWarp)
		sum := &sums[thread/threadsPerWarp][thread%threadsPerWarp]
		// The square of a 16-bit float is exact, so this rounds like a fused multiply-add.
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
// MinMagnitude prevents a scale of 0.
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
