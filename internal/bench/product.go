package bench

import (
	"errors"
	"fmt"

	"symmem"
	"symmem/driver/nccl/kernels"
	"symmem/internal/cublas"
	"symmem/internal/cuda"
)

// Product says whose the matrix product of a layer is.
type Product string

// The products that are measured.
const (
	// CuBLAS is that of cuBLAS, whose kernels begin when the all-reduce before them has ended.
	CuBLAS Product = "cublas"
	// PlainProduct is a kernel of our own for few sequences, which loads its first weights while the
	// all-reduce before it still runs.
	PlainProduct Product = "plain"
)

// ParseProduct reads the name of a product.
func ParseProduct(name string) (Product, error) {
	p := Product(name)
	if p != CuBLAS && p != PlainProduct {
		return "", fmt.Errorf("product %q is neither %s nor %s", name, CuBLAS, PlainProduct)
	}
	return p, nil
}

// Takes refuses more sequences than the product can have.
func (p Product) Takes(sequences int) error {
	if p == PlainProduct && sequences > kernels.MaxSequences {
		return fmt.Errorf("%d sequences are too many for the plain product, which has %d at most",
			sequences, kernels.MaxSequences)
	}
	return nil
}

// multiplier queues products of matrices that are stored by rows.
type multiplier interface {
	multiply(p *kernels.Product) error
	close() error
}

// multiplier makes that of a lane's stream, on a thread on which its GPU is current.
func (p Product) multiplier(l *lane, localRank int, gpu *cuda.Driver) (multiplier, error) {
	if p == PlainProduct {
		return newPlain(l, localRank, gpu)
	}
	return newBLAS(l)
}

// blas multiplies by cuBLAS.
type blas struct {
	library *cublas.Library
	handle  cublas.Handle
}

func newBLAS(l *lane) (*blas, error) {
	library, err := cublas.Load("")
	if err != nil {
		return nil, err
	}
	b := &blas{library: library}
	if b.handle, err = library.Create(); err != nil {
		return nil, err
	}
	if err := b.bind(l); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

// bind gives cuBLAS the lane's stream and a workspace.
func (b *blas) bind(l *lane) error {
	stream := cuda.Stream(l.rt.DefaultStream().Handle())
	if err := b.library.SetStream(b.handle, stream); err != nil {
		return err
	}
	workspace, err := l.desk.Alloc(cublas.WorkspaceBytes)
	if err != nil {
		return err
	}
	return b.library.SetWorkspace(b.handle, workspace.Address(), cublas.WorkspaceBytes)
}

func (b *blas) multiply(p *kernels.Product) error {
	matrix := func(at uintptr, leading int) cublas.Matrix {
		return cublas.Matrix{Address: at, Leading: leading, Type: cublas.BFloat16}
	}
	weights := matrix(p.Weights, p.Depth)
	weights.Operation = cublas.Transposed
	return b.library.Gemm(b.handle, p.Rows, p.Sequences, p.Depth, weights,
		matrix(p.Input, p.Depth), matrix(p.Output, p.Rows))
}

func (b *blas) close() error { return b.library.Destroy(b.handle) }

// plain multiplies by a kernel of our own.
type plain struct {
	*program
	stream    *symmem.Stream
	functions map[string]cuda.Function
}

func newPlain(l *lane, localRank int, gpu *cuda.Driver) (*plain, error) {
	program, err := loadProgram(gpu, localRank, kernels.ProductObject)
	if err != nil {
		return nil, err
	}
	return &plain{program, l.rt.DefaultStream(), map[string]cuda.Function{}}, nil
}

func (m *plain) multiply(p *kernels.Product) error {
	f, known := m.functions[p.Kernel()]
	if !known {
		var err error
		if f, err = m.gpu.ModuleGetFunction(m.module, p.Kernel()); err != nil {
			return err
		}
		m.functions[p.Kernel()] = f
	}
	params := p.Params()
	blocks, threads := p.Grid(m.multiprocessors)
	return m.queue(f, blocks, threads, m.stream, &params)
}
