package reduce

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

// Tests compare the results of Reduce, Average and ScaledSum with those of a simple reference, bit
// by bit. Seeds of random numbers are arbitrary. Expressions such as count%3 vary the destinations,
// the place and the hint of calls, so that a test covers many combinations.

// ops returns the operations that support a type.
func ops(t DataType) []Op {
	var all []Op
	for op := range Op(OpCount) {
		if op.Accepts(t) {
			all = append(all, op)
		}
	}

	return all
}

// forEachTypeAndOp calls run for every type with every operation that supports it.
func forEachTypeAndOp(run func(t DataType, op Op)) {
	for _, t := range DataTypes() {
		for _, op := range ops(t) {
			run(t, op)
		}
	}
}

// TestReduceAgreesWithReferenceAtEverySmallCount tests all counts for which kernels have special
// code: less than one vector, a few vectors, and a rest.
func TestReduceAgreesWithReferenceAtEverySmallCount(t *testing.T) {
	const maxCount = 130 // more than two cache lines of the smallest type
	r := rand.New(rand.NewPCG(1, 2))
	forEachTypeAndOp(func(typ DataType, op Op) {
		for _, sourceCount := range []int{1, 2, 3, 4, 5, 8, 9} {
			sources := randomBuffers(r, typ, sourceCount, maxCount)
			want := reference(op, typ, sources, false)
			for count := range maxCount + 1 {
				trial{
					op: op, t: typ, sources: shortened(typ, sources, count),
					destinationCount: 1 + count%3,
					inPlace:          count%(sourceCount+1) - 1, // -1 or the index of a source
					// Both are multiples of the size of an element.
					misalignment:      count * 5 % lineBytes / typ.Size() * typ.Size(),
					addedMisalignment: count % 2 * typ.Size(),
					hint:              Hint{Stream: count%5 == 0},
				}.check(t, want[:count*typ.Size()])
			}
		}
	})
}

// TestReduceAgreesWithReferenceBeyondOneStride reduces more bytes than one call of a kernel
// computes, which is a stride.
func TestReduceAgreesWithReferenceBeyondOneStride(t *testing.T) {
	// The sources repeat after period elements. As a prime number, period is no divisor of the
	// number of elements in a stride, so strides contain different data.
	const period = 1021
	r := rand.New(rand.NewPCG(3, 4))
	forEachTypeAndOp(func(typ DataType, op Op) {
		const extraCount = 77 // so that the last stride does not end at a cache line
		count := (strideBytes+strideBytes/8)/typ.Size() + extraCount
		sources := randomBuffers(r, typ, 2, period)
		// repeat returns count elements that repeat those of short.
		repeat := func(short []byte) []byte {
			return bytes.Repeat(short, count/period+1)[:count*typ.Size()]
		}
		want := repeat(reference(op, typ, sources, false))
		for i := range sources {
			sources[i] = repeat(sources[i])
		}

		for _, stream := range []bool{false, true} {
			trial{
				op: op, t: typ, sources: sources, destinationCount: 2, inPlace: notInPlace,
				misalignment: 3 * typ.Size(), hint: Hint{Stream: stream},
			}.check(t, want)
		}
	})
}

// TestTwoSourcesAgreeWithReference tests calls with two sources. For these, kernels have a loop for
// calls with one destination and another loop for calls with two destinations.
func TestTwoSourcesAgreeWithReference(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 16))
	forEachTypeAndOp(func(typ DataType, op Op) {
		for _, size := range []int{512, 1536, 2000} { // in bytes
			sources := randomBuffers(r, typ, 2, size/typ.Size())
			want := reference(op, typ, sources, false)
			for _, destinationCount := range []int{1, 2, 3} {
				for _, inPlace := range []int{notInPlace, 0, 1} {
					trial{
						op: op, t: typ, sources: sources,
						destinationCount: destinationCount, inPlace: inPlace,
						misalignment: 8, addedMisalignment: 24,
					}.check(t, want)
				}
			}
		}
	})
}

// TestStreamingAgreesWithReferenceAtEveryMisalignment requests streaming (stores that bypass the
// caches) for destinations at every offset from a cache line. Streaming has an effect only on
// aligned elements, but every result must be right.
func TestStreamingAgreesWithReferenceAtEveryMisalignment(t *testing.T) {
	const count = 701 // so that the last cache line is incomplete
	r := rand.New(rand.NewPCG(5, 6))
	for _, typ := range DataTypes() {
		sources := randomBuffers(r, typ, 3, count)
		want := reference(Sum, typ, sources, false)
		for misalignment := range lineBytes {
			for _, addedMisalignment := range []int{0, 1, 16} {
				trial{
					op: Sum, t: typ, sources: sources, destinationCount: 2, inPlace: notInPlace,
					misalignment: misalignment, addedMisalignment: addedMisalignment,
					hint: Hint{Stream: true},
				}.check(t, want)
			}
		}
	}
}

func TestAverageAgreesWithReference(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for _, typ := range DataTypes() {
		for _, sourceCount := range []int{1, 2, 3, 4, 5, 8, 33, 64} {
			for i := range 10 {
				sources := randomBuffers(r, typ, sourceCount, 4500/typ.Size()+i)
				trial{
					op: Sum, t: typ, sources: sources, average: true,
					destinationCount: 1 + i%3,
					inPlace:          i%(sourceCount+1) - 1, // -1 or the index of a source
					hint:             Hint{Stream: i%2 == 0},
				}.check(t, reference(Sum, typ, sources, true))
			}
		}
	}
}

// TestAverageOfFewOverflowingSums computes averages in which only a few sums are infinite or NaN.
// Kernels stop at the blocks that contain these sums, and continue after them.
func TestAverageOfFewOverflowingSums(t *testing.T) {
	largestValues := map[DataType]uint64{ // the bits of the largest finite numbers
		Float32: 0x7F7FFFFF, Float64: 0x7FEFFFFFFFFFFFFF, Float16: 0x7BFF, BFloat16: 0x7F7F,
	}
	r := rand.New(rand.NewPCG(9, 10))
	for typ, largest := range largestValues {
		for i := range 60 {
			sourceCount, count := 2+i%5, 1100+37*i
			sources := make([][]byte, sourceCount)
			for s := range sources {
				sources[s] = make([]byte, count*typ.Size())
				for e := range count {
					put(typ, sources[s], e, randomNearOne(r, typ))
				}
			}

			for range i % 4 { // up to 3 elements
				e := r.IntN(count)
				for _, source := range sources {
					value := largest
					if r.IntN(8) == 7 {
						value++ // infinity
					}

					put(typ, source, e, value)
				}
			}

			trial{
				op: Sum, t: typ, sources: sources, average: true,
				destinationCount: 1 + i%3,
				inPlace:          i%(sourceCount+1) - 1, // -1 or the index of a source
				hint:             Hint{Stream: i%2 == 0},
			}.check(t, reference(Sum, typ, sources, true))
		}
	}
}

// factors lists ordinary factors for scaled sums, factors whose products overflow or are subnormal,
// and factors that become infinite or zero when they are rounded to float32.
var factors = []float64{0.125, 1.0 / 3, -2.5, 1, 1e30, 1e-30, 1e300, 5e-324}

// TestScaledSumAgreesWithReference tests every small count, each with one of the factors.
func TestScaledSumAgreesWithReference(t *testing.T) {
	r := rand.New(rand.NewPCG(17, 18))
	for _, typ := range []DataType{Float32, Float64, Float16, BFloat16} {
		for i, sourceCount := range []int{1, 2, 3, 4, 8, 9, 64} {
			for count := range 140 { // more than two cache lines of the smallest type
				tr := trial{
					op: Sum, t: typ, sources: randomBuffers(r, typ, sourceCount, count),
					factor:           factors[(i+count)%len(factors)],
					destinationCount: 1 + count%3,
					inPlace:          count%(sourceCount+1) - 1, // -1 or the index of a source
					hint:             Hint{Stream: count%5 == 0},
				}
				tr.check(t, tr.want())
			}
		}
	}
}

// Test16BitFloatsAgreeWithReference combines every 16-bit float with some special values, to check
// all conversions to and from float32.
func Test16BitFloatsAgreeWithReference(t *testing.T) {
	const valueCount = 1 << 16
	partners := []uint64{
		0, 0x8000, // 0 and -0
		1,              // the smallest positive number
		0x3C01, 0x3F81, // the numbers after 1 as a float16 and as a bfloat16
		0x7C01, // NaN as a float16
	}
	for _, typ := range []DataType{Float16, BFloat16} {
		everyValue := make([]byte, valueCount*typ.Size())
		for i := range valueCount {
			put(typ, everyValue, i, uint64(i))
		}

		for _, partner := range partners {
			other := make([]byte, valueCount*typ.Size())
			for i := range valueCount {
				put(typ, other, i, partner)
			}

			for _, op := range ops(typ) {
				sources := [][]byte{everyValue, other}
				trial{
					op: op, t: typ, sources: sources, destinationCount: 1, inPlace: notInPlace,
				}.check(t, reference(op, typ, sources, false))
			}
		}
	}
}

// TestReduceOfAnyShape draws all fields of a trial at random.
func TestReduceOfAnyShape(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		typ := rapid.SampledFrom(DataTypes()).Draw(rt, "type")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "values"), 0))
		sourceCount := rapid.IntRange(1, MaxSources).Draw(rt, "sources")
		sources := randomBuffers(r, typ, sourceCount, rapid.IntRange(0, 400).Draw(rt, "count"))
		tr := trial{
			op: rapid.SampledFrom(ops(typ)).Draw(rt, "op"), t: typ, sources: sources,
			destinationCount:  rapid.IntRange(1, MaxDestinations).Draw(rt, "destinations"),
			inPlace:           rapid.IntRange(notInPlace, sourceCount-1).Draw(rt, "in place"),
			misalignment:      rapid.IntRange(0, 63).Draw(rt, "misplaced"),
			addedMisalignment: rapid.SampledFrom([]int{0, 0, 1, 8}).Draw(rt, "staggered"),
			hint:              Hint{Stream: rapid.Bool().Draw(rt, "stream")},
		}
		if rapid.Bool().Draw(rt, "average") {
			tr.op, tr.average = Sum, true
		}

		if typ.Float() && rapid.Bool().Draw(rt, "scaled") {
			tr.op, tr.factor = Sum, rapid.SampledFrom(factors).Draw(rt, "factor")
		}

		tr.check(rt, tr.want())
	})
}

// TestResultDoesNotDependOnSlicing reduces slices of random lengths in separate calls. The result
// must have the same bits as that of one call, because callers divide a reduction in many ways.
func TestResultDoesNotDependOnSlicing(t *testing.T) {
	const count, maxSlice = 333, 70 // in elements
	r := rand.New(rand.NewPCG(11, 12))
	forEachTypeAndOp(func(typ DataType, op Op) {
		sources := randomBuffers(r, typ, 3, count)
		want := reference(op, typ, sources, false)
		forEachLevel(func(level string) {
			got := make([]byte, len(want))
			for from := 0; from < count; {
				to := min(from+1+r.IntN(maxSlice), count)
				reduceSlice(op, typ, got, sources, from, to)
				from = to
			}

			if !bytes.Equal(got, want) {
				t.Errorf("%s, %v %v: reducing in slices gave a different result", level, op, typ)
			}
		})
	})
}

// reduceSlice reduces the elements with the indexes from, from+1, ..., to-1.
func reduceSlice(op Op, t DataType, dst []byte, sources [][]byte, from, to int) {
	srcs := make([]unsafe.Pointer, len(sources))
	for i, source := range sources {
		srcs[i] = unsafe.Pointer(&source[from*t.Size()])
	}

	dsts := []unsafe.Pointer{unsafe.Pointer(&dst[from*t.Size()])}
	Reduce(op, t, dsts, srcs, to-from, Hint{})
}
