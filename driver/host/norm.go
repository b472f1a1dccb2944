package host

import (
	"math"
	"unsafe"

	"symmem/driver"
	"symmem/internal/reduce"
)

// normalizer computes an RMS norm of rows, after the ranks' rows have been added up. It adds the
// residual to each row, divides the row by its root mean square, and multiplies it by weights:
//
//	row      2 -2  2 -2     for example, with the residual and the weights below
//	residual 1 -1  1 -1     added; 3 -3 3 -3 is the new residual
//	weights  2  2  1  1
//	output   2 -2  1 -1     the root mean square is 3
//
// Results have the same bits as those of package formula and of the GPU's kernels. The normalizer
// therefore adds in the same order as these kernels.
//
// The fields are buffers, which all calls reuse.
type normalizer struct {
	row        []float32            // the row that is being normalized
	residuals  []float32            // residual of the row
	weights    []float32            // weights of all rows, with the bias
	roundedRow []uint16             // output for norms that return only quantized values
	squareSums [threadCount]float32 // by thread of the GPU's kernels
}

// normalize computes all results of a norm from the sums in call.Recv.
func (n *normalizer) normalize(call *plan) {
	norm, t := call.Norm, call.DataType
	hidden := int(norm.Hidden)
	n.allocate(hidden)
	if norm.Rows == 0 {
		return
	}

	toFloat32(t, n.weights, matrixRow[uint16](norm.Weight, 0, hidden))
	for i := range n.weights {
		n.weights[i] += norm.WeightBias
	}

	for row := range int(norm.Rows) {
		sums := matrixRow[uint16](call.Recv, row, hidden)
		residual := matrixRow[uint16](norm.Residual, row, hidden)
		n.addResidual(t, sums, residual)
		output := sums // replaces the input
		if norm.OnlyQuantized {
			output = n.roundedRow
		}

		n.scaleRow(t, norm.Epsilon, output)
		if norm.Quant != driver.QuantNone {
			n.quantize(norm, row)
		}
	}
}

// allocate allocates the buffers for rows of a length, unless the latest call had the same length.
func (n *normalizer) allocate(hidden int) {
	if len(n.row) == hidden {
		return
	}

	n.row = make([]float32, hidden)
	n.residuals = make([]float32, hidden)
	n.weights = make([]float32, hidden)
	n.roundedRow = make([]uint16, hidden)
}

// matrixRow returns a row of the matrix at an address, which has hidden elements per row.
func matrixRow[T uint8 | uint16](matrix uintptr, row, hidden int) []T {
	var element T
	rowBytes := hidden * int(unsafe.Sizeof(element))
	return unsafe.Slice((*T)(unsafe.Add(pointer(matrix), row*rowBytes)), hidden)
}

// addResidual adds sums and residual, and stores the rounded result in n.row and residual.
func (n *normalizer) addResidual(t driver.DataType, sums, residual []uint16) {
	toFloat32(t, n.row, sums)
	toFloat32(t, n.residuals, residual)
	for i, v := range n.residuals {
		n.row[i] += v
	}

	roundRow(t, n.row, residual)
}

// scaleRow multiplies n.row by the weights, and divides it by the root of its mean square. It
// stores the rounded result in n.row and output.
func (n *normalizer) scaleRow(t driver.DataType, epsilon float32, output []uint16) {
	// The conversions to float32 prevent fused multiply-adds, which would round differently.
	meanSquare := float32(n.sumSquares() * float32(1/float32(len(n.row))))
	factor := 1 / float32(math.Sqrt(float64(meanSquare+epsilon)))
	for i, v := range n.row {
		n.row[i] = float32(v*n.weights[i]) * factor
	}

	roundRow(t, n.row, output)
}

// The GPU's kernels add up a row's squares with threadCount threads, in warps of 32.
const (
	threadCount    = 512
	threadsPerWarp = 32
)

// sumSquares returns the sum of the squares of n.row. Thread i of the GPU's kernels adds the
// squares of pack i (8 elements), of pack i+512, and so on. The threads' sums are then added in
// pairs.
func (n *normalizer) sumSquares() float32 {
	sums := &n.squareSums
	clear(sums[:])
	for first := 0; first < len(n.row); first += driver.NormUnit {
		pack := first / driver.NormUnit
		sum := &sums[pack%threadCount]
		for _, v := range n.row[first : first+driver.NormUnit] {
			// A float64 holds the square exactly: v was rounded to 16 bits, so its square has at
			// most 22 significant bits. The sum therefore rounds like a fused multiply-add.
			*sum = float32(float64(v)*float64(v) + float64(*sum))
		}
	}

	// In each warp, add the sums at distance 16, then at distance 8, and so on. The first thread of
	// the warp gets the total.
	for distance := threadsPerWarp / 2; distance > 0; distance /= 2 {
		for warp := 0; warp < threadCount; warp += threadsPerWarp {
			for i := warp; i < warp+distance; i++ {
				sums[i] += sums[i+distance]
			}
		}
	}

	// Add the totals of neighboring warps, then those of neighboring pairs, and so on.
	for distance := threadsPerWarp; distance < threadCount; distance *= 2 {
		for i := 0; i < threadCount; i += 2 * distance {
			sums[i] += sums[i+distance]
		}
	}

	return sums[0]
}

// quantize divides the values of n.row by scales, and stores the results as 8-bit floats. Depending
// on norm.Quant, the scales are given or computed here.
func (n *normalizer) quantize(norm *driver.Norm, row int) {
	quantized := matrixRow[uint8](norm.Quantized, row, len(n.row))
	groupSize := len(n.row) // number of values with the same scale
	if norm.Quant == driver.QuantPerGroup {
		groupSize = driver.QuantGroup
	}

	const scaleBytes = 4
	for first := 0; first < len(n.row); first += groupSize {
		values := n.row[first : first+groupSize]
		group := int64(first / groupSize)
		index := int64(row)*norm.ScaleStrides[0] + group*norm.ScaleStrides[1]
		scale := (*float32)(unsafe.Add(pointer(norm.Scales), scaleBytes*index))
		if norm.Quant.ComputesScales() {
			*scale = computeScale(values)
		}

		factor := 1 / *scale
		for i, v := range values {
			quantized[first+i] = reduce.Float8Bits(v * factor)
		}
	}
}

// computeScale returns the scale that maps the largest magnitude to the largest 8-bit float. It
// ignores magnitudes below MinMagnitude, so that the scale is not 0.
func computeScale(values []float32) float32 {
	largest := float32(driver.MinMagnitude)
	for _, v := range values {
		if isNaN(v) {
			return canonicalNaN
		}

		largest = max(largest, v, -v)
	}

	return largest / driver.MaxE4M3
}

// isNaN reports whether v is a NaN. Only a NaN differs from itself.
func isNaN(v float32) bool { return v != v }

// canonicalNaN is the NaN in all float32 results, as on the GPU.
var canonicalNaN = math.Float32frombits(0x7fffffff)

// canonicalNaN16 holds the bits of the NaN in all results of 16-bit types, as on the GPU.
const canonicalNaN16 = 0x7fff

// toFloat32 converts the bits of values of a 16-bit type.
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

// roundRow rounds the values in row to a 16-bit type. It stores the rounded values in row, and
// their bits in dst.
func roundRow(t driver.DataType, row []float32, dst []uint16) {
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
