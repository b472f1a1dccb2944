package formula

import (
	"math"

	"symmem/driver"
	"symmem/internal/reduce"
)

// NormRow holds the results of a norm for one row. The integers are the bits of floats.
type NormRow struct {
	Residual  []uint16
	Output    []uint16
	Quantized []uint8   // Output in 8-bit floats; nil without quantization
	Scales    []float32 // of the row or of each group of elements; nil if none are computed
}

// Norm returns the results of a norm for one row. sums is the sum of the ranks' rows, rounded to
// type t. Only QuantStatic uses staticScale. If epsilon and bias are 0:
//
//	sums         2 -2  2 -2
//	oldResidual  1 -1  1 -1
//	Residual     3 -3  3 -3    sums + oldResidual; the root mean square is 3
//	weight       2  2  1  1
//	Output       2 -2  1 -1    Residual / 3 * weight
func Norm(
	n *driver.Norm, t driver.DataType, sums, oldResidual, weight []uint16, staticScale float32,
) NormRow {
	toFloat32, to16Bits := reduce.BFloat16Value, reduce.BFloat16Bits
	if t == driver.Float16 {
		toFloat32, to16Bits = reduce.Float16Value, reduce.Float16Bits
	}

	toCanonicalBits := func(v float32) uint16 {
		if isNaN(v) {
			return to16Bits(canonicalNaN)
		}

		return to16Bits(v)
	}
	size := len(sums)
	r := NormRow{Residual: make([]uint16, size), Output: make([]uint16, size)}
	residual := make([]float32, size)
	for i := range sums {
		r.Residual[i] = toCanonicalBits(toFloat32(sums[i]) + toFloat32(oldResidual[i]))
		residual[i] = toFloat32(r.Residual[i])
	}

	inverseSize := 1 / float32(size)
	// Without the conversion, this may be a fused multiply-add.
	meanSquare := float32(sumSquares(residual) * inverseSize)
	inverseRMS := 1 / float32(math.Sqrt(float64(meanSquare+n.Epsilon)))
	output := make([]float32, size)
	for i, v := range residual {
		r.Output[i] = toCanonicalBits(v * (toFloat32(weight[i]) + n.WeightBias) * inverseRMS)
		output[i] = toFloat32(r.Output[i])
	}

	r.quantize(n.Quant, output, staticScale)
	return r
}

func isNaN(v float32) bool { return v != v }

// A GPU kernel divides a row among these threads.
const (
	warpCount      = 16
	threadsPerWarp = 32
)

// sumSquares adds the squares of a row in the order of the GPU kernels: first within each thread,
// then within each warp, then across warps.
func sumSquares(row []float32) float32 {
	var sums [warpCount][threadsPerWarp]float32
	for i, v := range row {
		unitIndex := i / driver.NormUnit
		thread := unitIndex % (warpCount * threadsPerWarp)
		sum := &sums[thread/threadsPerWarp][thread%threadsPerWarp]
		exactSquare := float64(v) * float64(v) // like fused multiply-add
		*sum = float32(exactSquare + float64(*sum))
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

// addThreads repeatedly adds the upper half of a warp's sums to the lower half.
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

	elementsPerScale := len(row)
	if q == driver.QuantPerGroup {
		elementsPerScale = driver.QuantGroup
	}

	for first := 0; first < len(row); first += elementsPerScale {
		values := row[first : first+elementsPerScale]
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
	largest := float32(driver.MinMagnitude) // not 0, because the scale is a divisor
	for _, v := range values {
		if isNaN(v) {
			return canonicalNaN
		}

		largest = max(largest, float32(math.Abs(float64(v))))
	}

	return largest / driver.MaxE4M3
}
