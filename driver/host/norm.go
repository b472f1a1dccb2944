package host

import (
	"math"
	"unsafe"

	"symmem/driver"
	"symmem/internal/reduce"
)

// normalizer computes the results of a norm after the ranks' inputs have been added up. The
// results have the same bits as those of package formula. All calls reuse the fields.
type normalizer struct {
	row, residuals, weights []float32 // one row each
	roundedRow              []uint16
	squareSums              [threadCount]float32 // by thread of the GPU's kernels
}

const (
	threadCount    = 512 // threads of the GPU's kernels that add up a row's squares
	threadsPerWarp = 32
)

// normalize computes all results of a norm from the sums in call.Recv.
func (n *normalizer) normalize(call *plan) {
	norm, t := call.Norm, call.DataType
	hidden := int(norm.Hidden)
	if len(n.row) != hidden {
		n.row, n.residuals = make([]float32, hidden), make([]float32, hidden)
		n.weights, n.roundedRow = make([]float32, hidden), make([]uint16, hidden)
	}
	if norm.Rows == 0 {
		return
	}
	toFloat32(t, n.weights, matrixRow[uint16](norm.Weight, 0, hidden))
	for i := range n.weights {
		n.weights[i] += norm.WeightBias
	}
	for row := range int(norm.Rows) {
		n.addResidual(t, matrixRow[uint16](call.Recv, row, hidden),
			matrixRow[uint16](norm.Residual, row, hidden))
		output := n.roundedRow
		if !norm.OnlyQuantized {
			output = matrixRow[uint16](call.Recv, row, hidden)
		}
		n.scaleRow(t, norm.Epsilon, output)
		if norm.Quant != driver.QuantNone {
			n.quantize(norm, row)
		}
	}
}

func matrixRow[T uint8 | uint16](matrix uintptr, row, hidden int) []T {
	var element T
	bytes := hidden * int(unsafe.Sizeof(element))
	return unsafe.Slice((*T)(unsafe.Add(pointer(matrix), row*bytes)), hidden)
}

// addResidual sets n.row and residual to the rounded sum of both arguments.
func (n *normalizer) addResidual(t driver.DataType, sums, residual []uint16) {
	toFloat32(t, n.row, sums)
	toFloat32(t, n.residuals, residual)
	for i, v := range n.residuals {
		n.row[i] += v
	}
	roundRow(t, n.row, residual)
}

func (n *normalizer) scaleRow(t driver.DataType, epsilon float32, output []uint16) {
	meanSquare := float32(n.sumSquares() * float32(1/float32(len(n.row))))
	factor := 1 / float32(math.Sqrt(float64(meanSquare+epsilon)))
	for i, v := range n.row {
		n.row[i] = float32(v*n.weights[i]) * factor
	}
	roundRow(t, n.row, output)
}

// sumSquares returns the sum of the squares of n.row, in the order of the GPU's kernels: each
// thread adds the squares of every 512th pack of 8 elements, and trees combine the threads' sums.
func (n *normalizer) sumSquares() float32 {
	sums := &n.squareSums
	clear(sums[:])
	for first := 0; first < len(n.row); first += driver.NormUnit {
		sum := &sums[first/driver.NormUnit%threadCount]
		for _, v := range n.row[first : first+driver.NormUnit] {
			// The square has at most 22 bits, so this rounds like a fused multiply-add.
			*sum = float32(float64(v)*float64(v) + float64(*sum))
		}
	}
	for distance := threadsPerWarp / 2; distance > 0; distance /= 2 {
		for warp := 0; warp < threadCount; warp += threadsPerWarp {
			for i := warp; i < warp+distance; i++ {
				sums[i] += sums[i+distance]
			}
		}
	}
	for distance := threadsPerWarp; distance < threadCount; distance *= 2 {
		for i := 0; i < threadCount; i += 2 * distance {
			sums[i] += sums[i+distance]
		}
	}
	return sums[0]
}

func (n *normalizer) quantize(norm *driver.Norm, row int) {
	quantized := matrixRow[uint8](norm.Quantized, row, len(n.row))
	groupSize := len(n.row)
	if norm.Quant == driver.QuantPerGroup {
		groupSize = driver.QuantGroup
	}
	for first := 0; first < len(n.row); first += groupSize {
		values := n.row[first : first+groupSize]
		index := int64(row)*norm.ScaleStrides[0] + int64(first/groupSize)*norm.ScaleStrides[1]
		scale := (*float32)(unsafe.Add(pointer(norm.Scales), 4*index))
		if norm.Quant.ComputesScales() {
			*scale = computeScale(values)
		}
		factor := 1 / *scale
		for i, v := range values {
			quantized[first+i] = reduce.Float8Bits(v * factor)
		}
	}
}

func computeScale(values []float32) float32 {
	largest := float32(driver.MinMagnitude)
	for _, v := range values {
		if v != v { // NaN
			return canonicalNaN
		}
		if v = max(v, -v); v > largest {
			largest = v
		}
	}
	return largest / driver.MaxE4M3
}

// canonicalNaN is the NaN in all float32 results.
var canonicalNaN = math.Float32frombits(0x7fffffff)

// canonicalNaN16 holds the bits of the NaN in all results of 16-bit types.
const canonicalNaN16 = 0x7fff

func toFloat32(t driver.DataType, dst []float32, src []uint16) {
	if t == driver.Float16 {
		for i, bits := range src {
			dst[i] = reduce.Float16Value(bits)
		}
		return
	}
	for i, bits := range src {
		dst[i] = reduce.BFloat16Value(bits)
	}
}

// roundRow rounds the values in row to a 16-bit type, and stores their bits in dst.
func roundRow(t driver.DataType, row []float32, dst []uint16) {
	for i, v := range row {
		switch {
		case v != v:
			dst[i] = canonicalNaN16
		case t == driver.Float16:
			dst[i] = reduce.Float16Bits(v)
		default:
			dst[i] = reduce.BFloat16Bits(v)
		}
	}
	toFloat32(t, row, dst)
}
