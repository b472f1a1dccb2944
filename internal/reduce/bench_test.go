package reduce

import (
	"fmt"
	"testing"
	"unsafe"
)

// streamSize is the size in bytes from which BenchmarkReduce bypasses the caches.
const streamSize = 32 << 20

func sizeName(size int) string {
	switch {
	case size >= 1<<20:
		return fmt.Sprintf("%dMiB", size>>20)
	case size >= 1<<10:
		return fmt.Sprintf("%dKiB", size>>10)
	}

	return fmt.Sprintf("%dB", size)
}

// newPages returns page-aligned memory of normal floats. Subnormal ones would be slow.
func newPages(size int) unsafe.Pointer {
	const pageBytes = 4096
	all := make([]byte, size+pageBytes)
	start := unsafe.Pointer(&all[0])
	Fill(start, 0x3F, len(all)) // as a float32, 0x3F3F3F3F is about 0.75
	toNextPage := -uintptr(start) % pageBytes
	return unsafe.Pointer(&all[toNextPage])
}

func BenchmarkReduce(b *testing.B) {
	for _, size := range []int{8, 1 << 10, 16 << 10, 1 << 20, 64 << 20} {
		srcs := []unsafe.Pointer{newPages(size), newPages(size)}
		dsts := []unsafe.Pointer{newPages(size), newPages(size)}
		hint := Hint{Stream: size >= streamSize}
		for _, t := range DataTypes() {
			benchmark(b, fmt.Sprintf("sum/%v/%s/1dst", t, sizeName(size)), size, func() {
				Reduce(Sum, t, dsts[:1], srcs, size/t.Size(), hint)
			})
		}

		benchmark(b, fmt.Sprintf("sum/float32/%s/2dst", sizeName(size)), size, func() {
			Reduce(Sum, Float32, dsts, srcs, size/Float32.Size(), hint)
		})
	}
}

// The sources fit into the cache.
func BenchmarkOperations(b *testing.B) {
	const size = 16 << 10
	srcs := []unsafe.Pointer{newPages(size), newPages(size)}
	dsts := []unsafe.Pointer{newPages(size)}
	forEachTypeAndOp(func(t DataType, op Op) {
		benchmark(b, fmt.Sprintf("%v/%v", op, t), size, func() {
			Reduce(op, t, dsts, srcs, size/t.Size(), Hint{})
		})
	})
}

func BenchmarkScaledSum(b *testing.B) {
	const size = 16 << 10
	srcs := []unsafe.Pointer{newPages(size), newPages(size)}
	dsts := []unsafe.Pointer{newPages(size)}
	for _, t := range []DataType{Float32, Float64, Float16, BFloat16} {
		benchmark(b, t.String(), size, func() {
			const factor = 0.125
			ScaledSum(t, dsts, srcs, size/t.Size(), factor, Hint{})
		})
	}
}

// Portable code averages the floats of the source nans, because their sums are NaNs.
func BenchmarkAverage(b *testing.B) {
	const size = 16 << 10
	dsts := []unsafe.Pointer{newPages(size)}
	nans := newPages(size)
	Fill(nans, 0xFF, size) // NaN in every floating-point type
	for name, last := range map[string]unsafe.Pointer{"finite": newPages(size), "nan": nans} {
		srcs := []unsafe.Pointer{newPages(size), newPages(size), last}
		for _, t := range DataTypes() {
			benchmark(b, fmt.Sprintf("%s/%v", name, t), size, func() {
				Average(t, dsts, srcs, size/t.Size(), Hint{})
			})
		}
	}
}

func BenchmarkCopy(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20} {
		dst := newPages(size)
		src := newPages(size)
		for _, stream := range []bool{false, true} {
			benchmark(b, fmt.Sprintf("%s/stream=%v", sizeName(size), stream), size, func() {
				Copy(dst, src, size, Hint{Stream: stream})
			})
		}
	}
}

func benchmark(b *testing.B, name string, size int, run func()) {
	b.Run(name, func(b *testing.B) {
		b.SetBytes(int64(size))
		b.ReportAllocs()
		for b.Loop() {
			run()
		}
	})
}
