package cublas

import "symmem/internal/dl"

// Operation says how a matrix is read: cublasOperation_t of cublas_api.h.
type Operation int32

// The operations.
const (
	AsItIs     Operation = 0 // CUBLAS_OP_N
	Transposed Operation = 1 // CUBLAS_OP_T
)

// DataType is the type of a matrix's elements: cudaDataType of library_types.h.
type DataType int32

// The data types.
const (
	Float32  DataType = 0  // CUDA_R_32F
	Float16  DataType = 2  // CUDA_R_16F
	BFloat16 DataType = 14 // CUDA_R_16BF
)

const (
	computeFloat32 = 68 // CUBLAS_COMPUTE_32F of cublasComputeType_t
	defaultAlgo    = -1 // CUBLAS_GEMM_DEFAULT of cublasGemmAlgo_t
)

// Matrix is a matrix in device memory, by columns.
type Matrix struct {
	// Address is the first element, Leading the distance of two columns in elements.
	Address uintptr
	Leading int
	// Type is that of the elements, Operation how they are read; that of a result is AsItIs.
	Type      DataType
	Operation Operation
}

// Gemm queues c = a b, where a has m rows and k columns, b k rows and n columns, and sums are kept
// in float32. A matrix that is stored by rows is its own transpose stored by columns: there the
// product is c^T = b^T a^T.
func (l *Library) Gemm(h Handle, m, n, k int, a, b, c Matrix) error {
	one, zero := dl.NewCell(float32(1)), dl.NewCell(float32(0))
	err := l.call(gemmEx, uintptr(h), uintptr(a.Operation), uintptr(b.Operation),
		uintptr(m), uintptr(n), uintptr(k), one.Address(),
		a.Address, uintptr(a.Type), uintptr(a.Leading),
		b.Address, uintptr(b.Type), uintptr(b.Leading), zero.Address(),
		c.Address, uintptr(c.Type), uintptr(c.Leading), computeFloat32, word(defaultAlgo))
	one.Take()
	zero.Take()
	return err
}

// word is a number as an int of C is passed.
func word(value int32) uintptr { return uintptr(uint32(value)) }
