package host

import (
	"math"
	"unsafe"

	"symmem/driver"
	"symmem/internal/reduce"
)

// normalizer computes the steps of an AllReduceRMSNorm that follow the all-reduce. Its results are
// bit-identical to those of package formula.
type normalizer struct {
	row, addend, weights []float32 // of one row
	rounded              []uint16
	squares              [normThreads]float32
}

// In the formula, normThreads threads add up a row's squares.
const (
	normThreads = 512
	warpThreads = 32
)

// finish replaces the sums in Recv by the output, and writes the residual, the quantized output and
// the computed scales.
func (n *normalizer) finish(call *plan) {
	norm, t := call.Norm, call.DataType
	hidden := int(norm.Hidden)
	if len(n.row) != hidden {
		n.row, n.addend = make([]float32, hidden), make([]float32, hidden)
		n.weights, n.rounded = make([]float32, hidden), make([]uint16, hidden)
	}
	if norm.Rows == 0 {
		return
	}
	widen(t, n.weights, rowOf[uint16](norm.Weight, 0, hidden))
	for i := range n.weights {
		n.weights[i] += norm.WeightBias
	}
	for row := range int(norm.Rows) {
		n.addResidual(t, rowOf[uint16](call.Recv, row, hidden),
			rowOf[uint16](norm.Residual, row, hidden))
		output := n.rounded
		if !norm.OnlyQuantized {
			output = rowOf[uint16](call.Recv, row, hidden)
		}
		n.scale(t, norm.Epsilon, output)
		if norm.Quant != driver.QuantNone {
			n.quantize(norm, row)
		}
	}
}

func rowOf[T uint8 | uint16](matrix uintptr, row, hidden int) []T {
	var one T
	bytes := hidden * int(unsafe.Sizeof(one))
	return unsafe.Slice((*T)(unsafe.Add(pointer(matrix), row*bytes)), hidden)
}

// addResidual adds a row of sums to the residual, and sets n.row to the result.
func (n *normalizer) addResidual(t driver.DataType, sums, residual []uint16) {
	widen(t, n.row, sums)
	widen(t, n.addend, residual)
	for i, v := range n.addend {
		n.row[i] += v
	}
	roundRow(t, n.row, residual)
}

// scale normalizes n.row, multiplies it by the weights, and stores the rounded results also in
// output.
func (n *normalizer) scale(t driver.DataType, epsilon float32, output []uint16) {
	mean := float32(n.sumSquares() * float32(1/float32(len(n.row))))
	factor := 1 / float32(math.Sqrt(float64(mean+epsilon)))
	for i, v := range n.row {
		n.row[i] = float32(v*n.weights[i]) * factor
	}
	roundRow(t, n.row, output)
}

// sumSquares adds up the squares of n.row in the order of the GPU's kernels. Each thread adds the
// squares of every 512th pack of 8 elements. Trees then combine the threads' sums.
func (n *normalizer) sumSquares() float32 {
	sums := &n.squares
	clear(sums[:])
	for first := 0; first < len(n.row); first += driver.NormUnit {
		sum := &sums[first/driver.NormUnit%normThreads]
		for _, v := range n.row[first : first+driver.NormUnit] {
			// The square has at most 22 bits, so this rounds like a fused multiply-add.
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

func (n *normalizer) quantize(norm *driver.Norm, row int) {
	quantized := rowOf[uint8](norm.Quantized, row, len(n.row))
	group := len(n.row)
	if norm.Quant == driver.QuantPerGroup {
		group = driver.QuantGroup
	}
	for first := 0; first < len(n.row); first += group {
		part := n.row[first : first+group]
		at := int64(row)*norm.ScaleStrides[0] + int64(first/group)*norm.ScaleStrides[1]
		scale := (*float32)(unsafe.Add(pointer(norm.Scales), 4*at))
		if norm.Quant.Computes() {
			*scale = scaleOf(part)
		}
		factor := 1 / *scale
		for i, v := range part {
			quantized[first+i] = reduce.Float8Bits(v * factor)
		}
	}
}

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
