package formula

import (
	"math"

	"symmem/driver"
	"symmem/internal/reduce"
)

// NormRow holds the results of a norm for one row, with elements as bits. NormCase.Want holds the
// results for all rows.
type NormRow struct {
	Residual, Output []uint16
	Quantized        []uint8   // nil without quantization
	Scales           []float32 // nil if the call does not compute scales
}

// Norm returns the results of a norm for one row. sums has the bits of the rounded sums of all
// ranks' inputs. staticScale is the scale for driver.QuantStatic, and is ignored for other kinds.
func Norm(
	n *driver.Norm, t driver.DataType, sums, residual, weight []uint16, staticScale float32,
) NormRow {
	decode, round := reduce.BFloat16Value, reduce.BFloat16Bits
	if t == driver.Float16 {
		decode, round = reduce.Float16Value, reduce.Float16Bits
	}
	encode := func(v float32) uint16 {
		if v != v { // NaN
			v = canonicalNaN
		}
		return round(v)
	}
	size := len(sums)
	r := NormRow{Residual: make([]uint16, size), Output: make([]uint16, size)}
	row := make([]float32, size)
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
	packSize     = driver.NormUnit
	lanesPerWarp = 32 // a lane is a thread of a warp
	warpCount    = 16
)

// sumSquares returns the sum of the squares of a row's elements. It adds in the order of the GPU
// kernel: each thread adds the squares of its packs (runs of packSize elements), a tree adds the
// sums of the lanes of each warp, and another tree adds the sums of the warps.
func sumSquares(row []float32) float32 {
	var sums [warpCount][lanesPerWarp]float32
	for i, v := range row {
		thread := i / packSize % (warpCount * lanesPerWarp)
		sum := &sums[thread/lanesPerWarp][thread%lanesPerWarp]
		// The square is exact (at most 22 bits), so this rounds like a fused multiply-add.
		*sum = float32(float64(v)*float64(v) + float64(*sum))
	}
	var totals [warpCount]float32
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

func (r *NormRow) quantize(q driver.Quant, row []float32, staticScale float32) {
	groupSize := len(row)
	switch q {
	case driver.QuantNone:
		return
	case driver.QuantPerGroup:
		groupSize = driver.QuantGroup
	case driver.QuantStatic, driver.QuantPerRow:
	}
	for first := 0; first < len(row); first += groupSize {
		values, scale := row[first:first+groupSize], staticScale
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

func computeScale(values []float32) float32 {
	largest := float32(0)
	for _, v := range values {
		if v != v {
			return canonicalNaN
		}
		largest = max(largest, float32(math.Abs(float64(v))))
	}
	return max(largest, float32(driver.MinMagnitude)) / driver.MaxE4M3
}
