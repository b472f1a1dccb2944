package host

import (
	"math"
	"unsafe"

	"symmem/driver"
	"symmem/internal/reduce"
)

// normalizer computes the steps of an AllReduceRMSNorm that follow the all-reduce. Its results are
// bit-identical to those of package formula. It needs no lock, because collectives run one at a
// time.
type normalizer struct {
	// row, addend and weights hold the values of one row; their length is the row's length.
	row, addend, weights []float32
	rounded              []uint16
	squares              [normThreads]float32
}

// normThreads is the number of threads that add up a row's squares in the formula, and
// warpThreads is the number of threads in a warp.
const (
	normThreads = 512
	warpThreads = 32
)

// finish replaces the sums in Recv by the output, and writes the residual, the quantized output and
// the computed scales.
func (z *normalizer) finish(call *plan) {
	norm, t := call.Norm, call.DataType
	hidden := int(norm.Hidden)
	if len(z.row) != hidden {
		z.row, z.addend = make([]float32, hidden), make([]float32, hidden)
		z.weights, z.rounded = make([]float32, hidden), make([]uint16, hidden)
	}
	if norm.Rows == 0 {
		return
	}
	widen(t, z.weights, rowOf[uint16](norm.Weight, 0, hidden))
	for i := range z.weights {
		z.weights[i] += norm.WeightBias
	}
	for row := range int(norm.Rows) {
		z.addResidual(t, rowOf[uint16](call.Recv, row, hidden),
			rowOf[uint16](norm.Residual, row, hidden))
		output := z.rounded
		if !norm.OnlyQuantized {
			output = rowOf[uint16](call.Recv, row, hidden)
		}
		z.scale(t, norm.Epsilon, output)
		if norm.Quant != driver.QuantNone {
			z.quantize(norm, row)
		}
	}
}

func rowOf[T uint8 | uint16](matrix uintptr, row, hidden int) []T {
	var one T
	bytes := hidden * int(unsafe.Sizeof(one))
	return unsafe.Slice((*T)(unsafe.Add(pointer(matrix), row*bytes)), hidden)
}

// addResidual adds a row of sums to the residual, and sets z.row to the new residual.
func (z *normalizer) addResidual(t driver.DataType, sums, residual []uint16) {
	widen(t, z.row, sums)
	widen(t, z.addend, residual)
	for i, v := range z.addend {
		z.row[i] += v
	}
	roundRow(t, z.row, residual)
}

// scale normalizes z.row and multiplies it by the weights. It rounds the results, and also stores
// them in output.
func (z *normalizer) scale(t driver.DataType, epsilon float32, output []uint16) {
	mean := float32(z.sumSquares() * float32(1/float32(len(z.row))))
	factor := 1 / float32(math.Sqrt(float64(mean+epsilon)))
	for i, v := range z.row {
		z.row[i] = float32(v*z.weights[i]) * factor
	}
	roundRow(t, z.row, output)
}

// sumSquares adds up the squares of z.row in the order of the GPU's kernels. Each thread adds
// the squares of every 512th pack of 8 elements. The threads' sums are then combined by trees.
func (z *normalizer) sumSquares() float32 {
	sums := &z.squares
	clear(sums[:])
	for first := 0; first < len(z.row); first += driver.NormUnit {
		sum := &sums[first/driver.NormUnit%normThreads]
		for _, v := range z.row[first : first+driver.NormUnit] {
			// The square has at most 22 bits, so the result is rounded like that of a fused multiply-add.
			*sum = float32(float64(v)*float64(v) + float64(*sum))
		}
	}
	for distance := warpThreads / 2; distance > 0; distance /= 2 {
		for warp := 0; warp < normThreads; warp += warpThreads {
			for i := warp; i < warp+distance; i++ {
				sums[i] += sums[i+distance]
			}
		}
	}
	for distance := warpThreads; distance < normThreads; distance *= 2 {
		for i := 0; i < normThreads; i += 2 * distance {
			sums[i] += sums[i+distance]
		}
	}
	return sums[0]
}

// quantize quantizes z.row, and stores the scales if the call computes them.
func (z *normalizer) quantize(n *driver.Norm, row int) {
	quantized := rowOf[uint8](n.Quantized, row, len(z.row))
	group := len(z.row)
	if n.Quant == driver.QuantPerGroup {
		group = driver.QuantGroup
	}
	for first := 0; first < len(z.row); first += group {
		part := z.row[first : first+group]
		at := int64(row)*n.ScaleStrides[0] + int64(first/group)*n.ScaleStrides[1]
		scale := (*float32)(unsafe.Add(pointer(n.Scales), 4*at))
		if n.Quant.Computes() {
			*scale = scaleOf(part)
		}
		factor := 1 / *scale
		for i, v := range part {
			quantized[first+i] = reduce.Float8Bits(v * factor)
		}
	}
}

// scaleOf returns the common scale of the elements in part.
func scaleOf(part []float32) float32 {
	largest := float32(driver.MinMagnitude)
	for _, v := range part {
		if v != v {
			return canonicalNaN
		}
		if v = max(v, -v); v > largest {
			largest = v
		}
	}
	return largest / driver.MaxE4M3
}

// canonicalNaN is the NaN in all float32 results. halfNaN is its value in both 16-bit types.
var canonicalNaN = math.Float32frombits(0x7fffffff)

const halfNaN = 0x7fff

// widen converts 16-bit elements to float32.
func widen(t driver.DataType, to []float32, from []uint16) {
	if t == driver.Float16 {
		for i, bits := range from {
			to[i] = reduce.Float16Value(bits)
		}
		return
	}
	for i, bits := range from {
		to[i] = reduce.BFloat16Value(bits)
	}
}

// roundRow rounds elements to a 16-bit type and stores the results both in row and in to.
func roundRow(t driver.DataType, row []float32, to []uint16) {
	for i, v := range row {
		switch {
		case v != v:
			to[i] = halfNaN
		case t == driver.Float16:
			to[i] = reduce.Float16Bits(v)
		default:
			to[i] = reduce.BFloat16Bits(v)
		}
	}
	widen(t, row, to)
}
