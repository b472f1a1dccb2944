package host

import (
	"math"
	"unsafe"

	"symmem/driver"
	"symmem/internal/reduce"
)

// normalizer computes RMS norms. For a row of sums 2, -2 with the residual 1, -1 and the weights
// 2, 1, it computes the new residual 3, -3, whose root mean square is 3, and the output 2, -1. It
// adds in the order of the GPU kernels, so that the results have the same bits.
//
// All calls reuse the buffers in the fields.
type normalizer struct {
	row         []float32            // the current row
	oldResidual []float32            // residual of the row before the call
	weights     []float32            // the same for all rows; include the bias
	roundedRow  []uint16             // output for norms that return only quantized values
	squareSums  [threadCount]float32 // one per GPU thread
}

// normalize normalizes the rows in call.Recv, each of which is a sum of the ranks' rows.
func (n *normalizer) normalize(call *plan) {
	norm, t := call.Norm, call.DataType
	rowLength := int(norm.Hidden)
	n.allocate(rowLength)
	if norm.Rows == 0 {
		return
	}

	toFloat32(t, n.weights, matrixRow[uint16](norm.Weight, 0, rowLength))
	for i := range n.weights {
		n.weights[i] += norm.WeightBias
	}

	for row := range int(norm.Rows) {
		sums := matrixRow[uint16](call.Recv, row, rowLength)
		residual := matrixRow[uint16](norm.Residual, row, rowLength)
		n.addResidual(t, sums, residual)
		output := sums // no longer needed
		if norm.OnlyQuantized {
			output = n.roundedRow
		}

		n.scaleRow(t, norm.Epsilon, output)
		if norm.Quant != driver.QuantNone {
			n.quantize(norm, row)
		}
	}
}

// allocate sets the length of the buffers. Consecutive calls usually have the same length.
func (n *normalizer) allocate(rowLength int) {
	if len(n.row) == rowLength {
		return
	}

	n.row = make([]float32, rowLength)
	n.oldResidual = make([]float32, rowLength)
	n.weights = make([]float32, rowLength)
	n.roundedRow = make([]uint16, rowLength)
}

// matrixRow returns a row of a matrix.
func matrixRow[T uint8 | uint16](matrix uintptr, row, rowLength int) []T {
	var element T
	rowBytes := rowLength * int(unsafe.Sizeof(element))
	return unsafe.Slice((*T)(unsafe.Add(pointer(matrix), row*rowBytes)), rowLength)
}

// addResidual adds sums to residual, rounds the results to type t, and sets n.row to them.
func (n *normalizer) addResidual(t driver.DataType, sums, residual []uint16) {
	toFloat32(t, n.row, sums)
	toFloat32(t, n.oldResidual, residual)
	for i, v := range n.oldResidual {
		n.row[i] += v
	}

	roundAndStore(t, n.row, residual)
}

// scaleRow sets n.row and output to n.row*weights/rms, rounded to type t.
func (n *normalizer) scaleRow(t driver.DataType, epsilon float32, output []uint16) {
	inverseSize := 1 / float32(len(n.row))
	// The conversion prevents a fused multiply-add.
	meanSquare := float32(n.sumSquares() * inverseSize)
	inverseRMS := 1 / float32(math.Sqrt(float64(meanSquare+epsilon)))
	for i, v := range n.row {
		n.row[i] = v * n.weights[i] * inverseRMS
	}

	roundAndStore(t, n.row, output)
}

const (
	threadCount    = 512 // GPU threads that share a row
	threadsPerWarp = 32
)

// sumSquares adds the squares of n.row in the order of a GPU: first within each thread, then within
// each warp, then across warps.
func (n *normalizer) sumSquares() float32 {
	sums := &n.squareSums
	clear(sums[:])
	addSquares(sums, n.row)
	for firstThread := 0; firstThread < threadCount; firstThread += threadsPerWarp {
		foldWarp(sums[firstThread : firstThread+threadsPerWarp])
	}

	addWarps(sums)
	return sums[0]
}

// addSquares gives each thread every threadCount-th unit of driver.NormUnit elements.
func addSquares(sums *[threadCount]float32, row []float32) {
	for first := 0; first < len(row); first += driver.NormUnit {
		unitIndex := first / driver.NormUnit
		sum := &sums[unitIndex%threadCount]
		for _, v := range row[first : first+driver.NormUnit] {
			exactSquare := float64(v) * float64(v) // as in a fused multiply-add
			*sum = float32(exactSquare + float64(*sum))
		}
	}
}

// foldWarp repeatedly adds the upper half of a warp's sums to the lower half.
func foldWarp(sums []float32) {
	for distance := threadsPerWarp / 2; distance > 0; distance /= 2 {
		for i := range distance {
			sums[i] += sums[i+distance]
		}
	}
}

// addWarps adds the warps' totals w, each at its first thread: (w0 + w1) + (w2 + w3).
func addWarps(sums *[threadCount]float32) {
	for distance := threadsPerWarp; distance < threadCount; distance *= 2 {
		for i := 0; i < threadCount; i += 2 * distance {
			sums[i] += sums[i+distance]
		}
	}
}

// quantize multiplies n.row by the inverse of its scales, and stores the results as 8-bit floats.
// Unless the scale is static, it first computes the scales.
func (n *normalizer) quantize(norm *driver.Norm, row int) {
	quantized := matrixRow[uint8](norm.Quantized, row, len(n.row))
	valuesPerScale := len(n.row)
	if norm.Quant == driver.QuantPerGroup {
		valuesPerScale = driver.QuantGroup
	}

	for first := 0; first < len(n.row); first += valuesPerScale {
		values := n.row[first : first+valuesPerScale]
		group := int64(first / valuesPerScale)
		scaleIndex := int64(row)*norm.ScaleStrides[0] + group*norm.ScaleStrides[1]
		scale := (*float32)(unsafe.Add(pointer(norm.Scales), floatBytes*scaleIndex))
		if norm.Quant.ComputesScales() {
			*scale = computeScale(values)
		}

		inverseScale := 1 / *scale
		for i, v := range values {
			quantized[first+i] = reduce.Float8Bits(v * inverseScale)
		}
	}
}

// computeScale returns the scale that maps the largest magnitude to the largest 8-bit float.
func computeScale(values []float32) float32 {
	largest := float32(driver.MinMagnitude) // because the scale, a divisor, must not be 0
	for _, v := range values {
		if isNaN(v) {
			return canonicalNaN
		}

		largest = max(largest, v, -v)
	}

	return largest / driver.MaxE4M3
}

func isNaN(v float32) bool { return v != v }

// Every NaN in a result has these bits, as on a GPU.
var canonicalNaN = math.Float32frombits(0x7fffffff)

const canonicalNaN16 = 0x7fff // for both 16-bit types

// toFloat32 decodes values of the 16-bit type t.
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

// roundAndStore rounds row to the 16-bit type t, in place, and stores the bits in dst.
func roundAndStore(t driver.DataType, row []float32, dst []uint16) {
	for i, v := range row {
		switch {
		case isNaN(v):
			dst[i] = canonicalNaN16
		case t == driver.Float16:
			dst[i] = reduce.Float16Bits(v)
		default:
			dst[i] = reduce.BFloat16Bits(v)
		}
	}

	toFloat32(t, row, dst)
}
