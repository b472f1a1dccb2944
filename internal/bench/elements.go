package bench

import (
	"context"
	"fmt"
	"unsafe"

	"symmem"
	"symmem/internal/reduce"
)

// elements is a buffer as elements of a type.
type elements interface {
	// fill writes n elements from element at on.
	fill(ctx context.Context, at, n int64, value func(i int64) int64) error
	// wrong counts those of n elements from element at on that are not as wanted.
	wrong(ctx context.Context, at, n int64, wanted func(i int64) int64) (int64, error)
}

// typed implements elements; encode turns a number into an element, rounding as the type does.
type typed[T symmem.Element] struct {
	// view is the buffer itself where the processor can address it, else a mirror of it.
	view   []T
	encode func(int64) T
	// memory is the buffer, and stream what copies between it and the mirror; nil without one.
	memory symmem.Memory
	stream *symmem.Stream
}

func (e typed[T]) fill(ctx context.Context, at, n int64, value func(int64) int64) error {
	part := e.view[at : at+n]
	for i := range part {
		part[i] = e.encode(value(int64(i)))
	}
	return e.copied(ctx, at, n, func(device, mirror symmem.Memory) error {
		return e.stream.Copy(device, mirror)
	})
}

func (e typed[T]) wrong(
	ctx context.Context, at, n int64, wanted func(int64) int64,
) (count int64, err error) {
	err = e.copied(ctx, at, n, func(device, mirror symmem.Memory) error {
		return e.stream.Copy(mirror, device)
	})
	part := e.view[at : at+n]
	for i := range part {
		if part[i] != e.encode(wanted(int64(i))) {
			count++
		}
	}
	return count, err
}

// copied copies a part between the buffer and its mirror, if it has one.
func (e typed[T]) copied(
	ctx context.Context, at, n int64, between func(device, mirror symmem.Memory) error,
) error {
	if e.stream == nil || n == 0 {
		return nil
	}
	var zero T
	size := int64(unsafe.Sizeof(zero))
	device, err := e.memory.Slice(at*size, n*size)
	if err == nil {
		err = between(device, symmem.Host(e.view[at:at+n]))
	}
	if err != nil {
		return fmt.Errorf("copying between a buffer and its mirror: %w", err)
	}
	return e.stream.Synchronize(ctx)
}

// elementsOf views a buffer or, given a stream, mirrors it.
func elementsOf(b symmem.Buffer, t symmem.DataType, mirror *symmem.Stream) (elements, error) {
	switch t {
	case symmem.Float64:
		return view(b, mirror, func(v int64) float64 { return float64(v) })
	case symmem.Float32:
		return view(b, mirror, func(v int64) float32 { return float32(v) })
	case symmem.Float16:
		return view(b, mirror, func(v int64) uint16 { return reduce.Float16Bits(float32(v)) })
	case symmem.BFloat16:
		return view(b, mirror, func(v int64) uint16 { return reduce.BFloat16Bits(float32(v)) })
	case symmem.Int8:
		return view(b, mirror, func(v int64) int8 { return int8(v) })
	case symmem.Uint8:
		return view(b, mirror, func(v int64) uint8 { return uint8(v) })
	case symmem.Int32:
		return view(b, mirror, func(v int64) int32 { return int32(v) })
	case symmem.Int64:
		return view(b, mirror, func(v int64) int64 { return v })
	default:
		return nil, fmt.Errorf("data type %v: %w", t, symmem.ErrUnsupported)
	}
}

func view[T symmem.Element](
	b symmem.Buffer, mirror *symmem.Stream, encode func(int64) T,
) (elements, error) {
	if mirror != nil {
		var zero T
		values := make([]T, b.Size()/int64(unsafe.Sizeof(zero)))
		return typed[T]{values, encode, b.Memory(), mirror}, nil
	}
	values, err := symmem.View[T](b)
	if err != nil {
		return nil, err
	}
	return typed[T]{view: values, encode: encode}, nil
}
