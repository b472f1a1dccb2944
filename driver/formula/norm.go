package formula

import (
	"math"

	"symmem/driver"
	"symmem/internal/reduce"
)

// NormRow holds one row of the results of a norm. Elements are stored as bits.
type NormRow struct {
	Residual, Output []uint16
	Quantized        []uint8
	Scales           []float32 // only if the call computes scales
}

// Norm computes a row from the rounded sums of all ranks' inputs. driver.QuantStatic uses
// staticScale.
func Norm(
	n *driver.Norm, t driver.DataType, sums, residual, weight []uint16, staticScale float32,
) NormRow {
	decode, round := reduce.BFloat16Value, reduce.BFloat16Bits
	if t == driver.Float16 {
		decode, round = reduce.Float16Value, reduce.Float16Bits
	}
	encode := func(v float32) uint16 {
		if v != v {
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

// sumSquares adds the squares of a row in the order of the GPU kernel: each thread adds those of
// its packs, and trees add up the lanes of each warp and then the warps.
func sumSquares(row []float32) float32 {
	var sums [warpCount][lanesPerWarp]float32
	for i, v := range row {
		thread := i / packSize % (warpCount * lanesPerWarp)
		sum := &sums[thread/lanesPerWarp][thread%lanesPerWarp]
		// The square has at most 22 bits, so this rounds like a fused multiply-add.
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
	group := len(row)
	switch q {
	case driver.QuantNone:
		return
	case driver.QuantPerGroup:
		group = driver.QuantGroup
	case driver.QuantStatic, driver.QuantPerRow:
	}
	for first := 0; first < len(row); first += group {
		values, scale := row[first:first+group], staticScale
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
