package reduce

import (
	"strings"
	"testing"
	"unsafe"
)

func TestReduceDoesNotAllocate(t *testing.T) {
	var a, b, c [600]byte
	forEachLevel(func(name string) {
		for _, typ := range DataTypes() {
			allocations := testing.AllocsPerRun(10, func() {
				srcs := [2]unsafe.Pointer{unsafe.Pointer(&a), unsafe.Pointer(&b)}
				dsts := [1]unsafe.Pointer{unsafe.Pointer(&c)}
				Reduce(Sum, typ, dsts[:], srcs[:], 600/typ.Size(), Hint{Stream: true})
				Average(typ, dsts[:], srcs[:], 600/typ.Size(), Hint{})
				if typ.Float() {
					ScaledSum(typ, dsts[:], srcs[:], 600/typ.Size(), 0.5, Hint{Stream: true})
					Tree{DataType: typ, IsScaled: true, Factor: 0.5}.Reduce(dsts[:], srcs[:],
						600/typ.Size())
				}

				Tree{DataType: typ, IsAverage: true}.Reduce(dsts[:], srcs[:], 600/typ.Size())
			})
			if allocations != 0 {
				t.Errorf("%s, %v: got %v allocations, want 0", name, typ, allocations)
			}
		}
	})
}

func TestViolatedPreconditionsPanic(t *testing.T) {
	one, many := make([]unsafe.Pointer, 1), make([]unsafe.Pointer, MaxSources+1)
	cases := map[string]func(){
		"no source":                     func() { Reduce(Sum, Float32, one, nil, 1, Hint{}) },
		"no destination":                func() { Reduce(Sum, Float32, nil, one, 1, Hint{}) },
		"too many sources":              func() { Reduce(Sum, Float32, one, many, 1, Hint{}) },
		"too many destinations":         func() { Reduce(Sum, Float32, many, one, 1, Hint{}) },
		"an unknown operation":          func() { Reduce(OpCount, Float32, one, one, 1, Hint{}) },
		"an unknown data type":          func() { Reduce(Sum, dataTypes, one, one, 1, Hint{}) },
		"a bitwise operation on floats": func() { Reduce(BAnd, Float32, one, one, 1, Hint{}) },
		"a negative count":              func() { Reduce(Sum, Float32, one, one, -1, Hint{}) },
		"a scaled sum of integers":      func() { ScaledSum(Int32, one, one, 1, 2, Hint{}) },
		"an average that is not a sum": func() {
			Tree{DataType: Float32, Op: Max, IsAverage: true}.Reduce(one, one, 1)
		},
	}
	for name, call := range cases {
		t.Run(name, func(t *testing.T) {
			defer func() {
				reason := recover()
				if text, ok := reason.(string); !ok || !strings.HasPrefix(text, "reduce: ") {
					t.Errorf("recovered %v, want a panic with prefix %q", reason, "reduce: ")
				}
			}()
			call()
		})
	}
}
