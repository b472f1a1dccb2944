package formula

import (
	"math"

	"symmem/driver"
	"symmem/internal/reduce"
)

// NormRow holds one row of the results of AllReduceRMSNorm, with elements as bits.
type NormRow struct {
	Residual, Output []uint16
	Quantized        []uint8
	Scales           []float32 // only if the call computes them
}

// Norm computes a row from the rounded sums of all ranks' inputs. static is the scale of
// driver.QuantStatic.
func Norm(
	n *driver.Norm, t driver.DataType, sums, residual, weight []uint16, static float32,
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
	mean := float32(squares(row) * float32(1/float32(size)))
	scale := 1 / float32(math.Sqrt(float64(mean+n.Epsilon)))
	for i, v := range row {
		product := v * float32(decode(weight[i])+n.WeightBias)
		row[i] = decode(encode(float32(product) * scale))
		r.Output[i] = encode(row[i])
	}
	r.quantize(n.Quant, row, static)
	return r
}

// A kernel distributes the squares among the lanes of its warps in packs.
const (
	packSize = driver.NormUnit
	lanes    = 32 // per warp
	warps    = 16
)

// squares adds up the squares of a row in the same order as the kernel. Each thread adds the
// squares of its packs. A tree adds up the lanes of each warp, and another tree adds up the warps.
func squares(row []float32) float32 {
	var sums [warps][lanes]float32
	for i, v := range row {
		thread := i / packSize % (warps * lanes)
		sum := &sums[thread/lanes][thread%lanes]
		// The square has at most 22 bits, so this rounds like a fused multiply-add.
		*sum = float32(float64(v)*float64(v) + float64(*sum))
	}
	var totals [warps]float32
	for w := range sums {
		for step := lanes / 2; step > 0; step /= 2 {
			for l := range step {
				sums[w][l] += sums[w][l+step]
			}
		}
		totals[w] = sums[w][0]
	}
	for step := 1; step < warps; step *= 2 {
		for w := 0; w < warps; w += 2 * step {
			totals[w] += totals[w+step]
		}
	}
	return totals[0]
}

func (r *NormRow) quantize(q driver.Quant, row []float32, static float32) {
	group := len(row)
	switch q {
	case driver.QuantNone:
		return
	case driver.QuantPerGroup:
		group = driver.QuantGroup
	case driver.QuantStatic, driver.QuantPerRow:
	}
	for first := 0; first < len(row); first += group {
		part, scale := row[first:first+group], static
		if q.Computes() {
			scale = quantScale(part)
			r.Scales = append(r.Scales, scale)
		}
		factor := 1 / scale
		for _, v := range part {
			r.Quantized = append(r.Quantized, reduce.Float8Bits(v*factor))
		}
	}
}

func quantScale(part []float32) float32 {
	largest := float32(0)
	for _, v := range part {
		if v != v {
			return canonicalNaN
		}
		largest = max(largest, float32(math.Abs(float64(v))))
	}
	return max(largest, float32(driver.MinMagnitude)) / driver.MaxE4M3
}
