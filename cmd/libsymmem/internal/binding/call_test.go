package binding

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"symmem"
	"symmem/driver"
)

// TestCallsFindBufferOfTensor makes calls on the second half of a buffer. PyTorch does this for a
// tensor that is part of a larger block. The calls must find the buffer by the inner address, and
// respect its end.
func TestCallsFindBufferOfTensor(t *testing.T) {
	const bufferBytes, tensorOffset = 4096, 2048
	const elementBytes = 8 // of SYMMEM_FLOAT64, which is 0 and therefore the default type
	l, counters := openLibrary(t, hostOptions)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}

	address, err := l.Alloc(mainPool, bufferBytes, defaultStream, noSite)
	if err != nil {
		t.Fatal(err)
	}

	tensor := address + tensorOffset
	call := &Arguments{
		Operation: int(symmem.OpAllReduce), Send: tensor, Recv: tensor,
		Count: (bufferBytes - tensorOffset) / elementBytes, // up to the end of the buffer
	}
	// The first call registers the buffer as a window. Explain announces this, but does nothing.
	text, err := l.Explain(world, call)
	if err != nil || !strings.Contains(text, `"registers":true`) {
		t.Errorf("Explain before the first call = %s, %v; want a registration", text, err)
	}

	windowsBefore := counters.Windows.Load()
	if err := l.Do(world, call); err != nil {
		t.Errorf("first call: got %v, want nil", err)
	}

	if counters.Windows.Load() == windowsBefore {
		t.Error("the first call did not change the counter of windows, want a new window")
	}

	tooLong := *call
	tooLong.Count++
	if err := l.Do(world, &tooLong); !errors.Is(err, symmem.ErrOutOfRange) {
		t.Errorf("call past the end of the buffer: got %v, want %v", err, symmem.ErrOutOfRange)
	}

	if err := l.Free(address, delay); err != nil {
		t.Fatal(err)
	}

	if err := l.Do(world, call); !errors.Is(err, symmem.ErrFreed) {
		t.Errorf("call on a freed buffer: got %v, want %v", err, symmem.ErrFreed)
	}

	if _, err := l.Explain(world, call); !errors.Is(err, symmem.ErrFreed) {
		t.Errorf("Explain of a freed buffer: got %v, want %v", err, symmem.ErrFreed)
	}
}

// Numbers of element types in symmem.h.
const (
	float64Type  = 0  // SYMMEM_FLOAT64
	float32Type  = 1  // SYMMEM_FLOAT32
	float16Type  = 2  // SYMMEM_FLOAT16
	bfloat16Type = 3  // SYMMEM_BFLOAT16
	unknownType  = 99 // no type has this number
)

// hugeNumber is so large that a size in bytes overflows if it is computed without a check.
const hugeNumber = 1 << 62

// tooManyExperts is a number of experts for each token.
const tooManyExperts = driver.MaxTopK + 1 // 17

func TestNormErrorsNameTheArgument(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}

	for _, row := range []struct {
		elementType int
		hidden      int64  // elements of a row; valid if it is a multiple of 8
		want        string // part of the error's text
	}{
		{unknownType, 64, "element type 99 does not exist"},
		{float64Type, 64, "the norm does not support float64"},
		{float32Type, 64, "the norm does not support float32"},
		{float16Type, 60, "rows have 60 elements"},
	} {
		err := l.Norm(world, &NormArguments{Type: row.elementType, Rows: 1, Hidden: row.hidden})
		if !errors.Is(err, symmem.ErrInvalid) || !strings.Contains(err.Error(), row.want) {
			t.Errorf("norm of type %d with %d elements = %v, want ErrInvalid with %q", row.elementType,
				row.hidden, err, row.want)
		}
	}
}

// TestRouteErrorsNameTheArgument changes one argument of a valid call in each case. A routing call
// sends tokens to experts (a dispatch) or their results back (a combine).
func TestRouteErrorsNameTheArgument(t *testing.T) {
	const dispatch, combine = false, true
	l, _ := openLibrary(t, hostOptions)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}

	for _, row := range []struct {
		change func(a *RouteArguments)
		want   string // part of the error's text
	}{
		{func(a *RouteArguments) { a.Type = unknownType }, "element type 99 does not exist"},
		{func(a *RouteArguments) { a.TopK = tooManyExperts }, "17 experts per token"},
		{func(a *RouteArguments) { a.Experts = 0 }, "0 experts"},
		{func(a *RouteArguments) { a.MaxTokens = hugeNumber }, "tokens per rank"},
		{func(a *RouteArguments) { a.Tokens = -1 }, "-1 tokens"},
		{func(a *RouteArguments) { a.Hidden = hugeNumber }, "rows have"},
	} {
		a := &RouteArguments{Experts: 4, TopK: 1, MaxTokens: 4, Hidden: 64, Type: bfloat16Type}
		row.change(a)
		for _, combines := range []bool{dispatch, combine} {
			err := l.Route(world, a, combines, defaultStream, noSite)
			if !errors.Is(err, symmem.ErrInvalid) || !strings.Contains(err.Error(), row.want) {
				t.Errorf("Route(%+v) with combines = %v: got %v, want ErrInvalid with %q", a, combines,
					err, row.want)
			}
		}
	}
}

// TestPermuteErrorsNameTheArgument changes one argument of a valid call in each case. A permutation
// sorts the received tokens by expert, or reverses this.
func TestPermuteErrorsNameTheArgument(t *testing.T) {
	const permute, unpermute = false, true
	l, _ := openLibrary(t, hostOptions)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}

	for _, row := range []struct {
		change func(a *PermuteArguments)
		want   string // part of the error's text
	}{
		{func(a *PermuteArguments) { a.Type = unknownType }, "element type 99 does not exist"},
		{func(a *PermuteArguments) { a.TopK = tooManyExperts }, "17 experts per token"},
		{func(a *PermuteArguments) { a.MaxTokens = hugeNumber }, "tokens per rank"},
		{func(a *PermuteArguments) { a.Hidden = hugeNumber }, "rows have"},
		{func(a *PermuteArguments) { a.Align = hugeNumber }, "aligned to"},
	} {
		a := &PermuteArguments{Experts: 4, TopK: 1, MaxTokens: 4, Hidden: 64, Type: bfloat16Type}
		row.change(a)
		for _, reverses := range []bool{permute, unpermute} {
			err := l.Permute(world, a, reverses, defaultStream)
			if !errors.Is(err, symmem.ErrInvalid) || !strings.Contains(err.Error(), row.want) {
				t.Errorf("Permute(%+v) with reverses = %v: got %v, want ErrInvalid with %q", a, reverses,
					err, row.want)
			}
		}
	}
}

// TestDurationsAreBounded checks that negative durations are refused, and those that overflow when
// they are converted from milliseconds.
func TestDurationsAreBounded(t *testing.T) {
	for _, o := range []Options{
		{TimeoutMS: -1},
		{TimeoutMS: hugeNumber},
		{CheckIntervalMS: -hugeNumber},
		{WarnAfterMS: -hugeNumber},
	} {
		if _, err := o.runtimeOptions(); !errors.Is(err, symmem.ErrInvalid) {
			t.Errorf("runtimeOptions of %+v: got error %v, want %v", o, err, symmem.ErrInvalid)
		}
	}
}

// BenchmarkDo measures a call on an address inside one of many buffers, which the call must find.
func BenchmarkDo(b *testing.B) {
	for _, bufferCount := range []int{4, 400} {
		b.Run(fmt.Sprintf("buffers=%d", bufferCount), func(b *testing.B) {
			l := New(&Counters{}, func(text string) { b.Error(text) })
			if err := l.Open([]byte(hostOptions)); err != nil {
				b.Fatal(err)
			}

			defer func() { _ = l.Close(force) }()
			world, err := l.World()
			if err != nil {
				b.Fatal(err)
			}

			var tensor uintptr
			for i := range bufferCount {
				address, err := l.Alloc(mainPool, 1<<16, defaultStream, noSite)
				if err != nil {
					b.Fatal(err)
				}

				if i == bufferCount/2 {
					tensor = address + 4096
				}
			}

			call := &Arguments{
				Operation: int(symmem.OpAllReduce), Count: 64, Send: tensor, Recv: tensor,
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := l.Do(world, call); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
