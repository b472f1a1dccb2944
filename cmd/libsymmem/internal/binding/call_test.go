package binding

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"symmem"
	"symmem/driver"
)

// A call can use an address inside a buffer, such as that of a tensor in a larger block.
func TestCallsFindBufferOfTensor(t *testing.T) {
	const bufferBytes, tensorOffset = 4096, 2048
	const elementBytes = 8 // of float64Type, the zero value of Arguments.Type
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
	text, err := l.Explain(world, call)
	if err != nil || !strings.Contains(text, `"registers":true`) {
		t.Errorf("Explain before the first call = %s, %v; want that the call registers", text, err)
	}

	windowsBefore := counters.Windows.Load()
	if err := l.Do(world, call); err != nil {
		t.Errorf("first call: got %v, want nil", err)
	}

	if counters.Windows.Load() == windowsBefore {
		t.Error("the first call did not register a window")
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
	float64Type  = 0
	float32Type  = 1
	float16Type  = 2
	bfloat16Type = 3
	unknownType  = 99
)

const (
	hugeNumber     = 1 << 62 // overflows when it is multiplied without a check
	tooManyExperts = driver.MaxTopK + 1
	validHidden    = 64 // elements of a row; any small multiple of 8
)

func TestNormErrorsNameTheArgument(t *testing.T) {
	const unalignedHidden = 60 // not a multiple of 8
	l, _ := openLibrary(t, hostOptions)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}

	for _, row := range []struct {
		elementType int
		hidden      int64
		want        string
	}{
		{unknownType, validHidden, "element type 99 does not exist"},
		{float64Type, validHidden, "the norm does not support float64"},
		{float32Type, validHidden, "the norm does not support float32"},
		{float16Type, unalignedHidden, "rows have 60 elements"},
	} {
		err := l.Norm(world, &NormArguments{Type: row.elementType, Rows: 1, Hidden: row.hidden})
		if !errors.Is(err, symmem.ErrInvalid) || !strings.Contains(err.Error(), row.want) {
			t.Errorf("Norm of type %d with %d elements = %v, want ErrInvalid with %q", row.elementType,
				row.hidden, err, row.want)
		}
	}
}

func TestRouteErrorsNameTheArgument(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}

	for _, row := range []struct {
		change func(valid *RouteArguments)
		want   string
	}{
		{func(a *RouteArguments) { a.Type = unknownType }, "element type 99 does not exist"},
		{func(a *RouteArguments) { a.TopK = tooManyExperts }, "17 experts per token"},
		{func(a *RouteArguments) { a.Experts = 0 }, "0 experts"},
		{func(a *RouteArguments) { a.MaxTokens = hugeNumber }, "tokens per rank"},
		{func(a *RouteArguments) { a.Tokens = -1 }, "-1 tokens"},
		{func(a *RouteArguments) { a.Hidden = hugeNumber }, "rows have"},
	} {
		args := &RouteArguments{
			Experts: 4, TopK: 1, MaxTokens: 4, Hidden: validHidden, Type: bfloat16Type,
		}
		row.change(args)
		for _, operation := range []symmem.Operation{symmem.OpDispatch, symmem.OpCombine} {
			err := l.Route(world, operation, args, defaultStream, noSite)
			if !errors.Is(err, symmem.ErrInvalid) || !strings.Contains(err.Error(), row.want) {
				t.Errorf("Route(%v, %+v): got %v, want ErrInvalid with %q", operation, args, err,
					row.want)
			}
		}
	}
}

func TestPermuteErrorsNameTheArgument(t *testing.T) {
	const permute, unpermute = false, true
	l, _ := openLibrary(t, hostOptions)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}

	for _, row := range []struct {
		change func(valid *PermuteArguments)
		want   string
	}{
		{func(a *PermuteArguments) { a.Type = unknownType }, "element type 99 does not exist"},
		{func(a *PermuteArguments) { a.TopK = tooManyExperts }, "17 experts per token"},
		{func(a *PermuteArguments) { a.MaxTokens = hugeNumber }, "tokens per rank"},
		{func(a *PermuteArguments) { a.Hidden = hugeNumber }, "rows have"},
		{func(a *PermuteArguments) { a.Align = hugeNumber }, "aligned to"},
	} {
		args := &PermuteArguments{
			Experts: 4, TopK: 1, MaxTokens: 4, Hidden: validHidden, Type: bfloat16Type,
		}
		row.change(args)
		for _, reverses := range []bool{permute, unpermute} {
			err := l.Permute(world, args, reverses, defaultStream)
			if !errors.Is(err, symmem.ErrInvalid) || !strings.Contains(err.Error(), row.want) {
				t.Errorf("Permute(%+v) with reverses = %v: got %v, want ErrInvalid with %q", args,
					reverses, err, row.want)
			}
		}
	}
}

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

// BenchmarkDo includes the search for the buffer that contains the address of the tensor.
func BenchmarkDo(b *testing.B) {
	const bufferBytes, tensorOffset = 1 << 16, 4096
	const elements = 64
	for _, bufferCount := range []int{4, 400} {
		b.Run(fmt.Sprintf("buffers=%d", bufferCount), func(b *testing.B) {
			l := New(&Counters{}, func(text string) { b.Error(text) })
			if err := l.Open([]byte(hostOptions)); err != nil {
				b.Fatal(err)
			}

			defer func() {
				if err := l.Close(force); err != nil {
					b.Error(err)
				}
			}()
			world, err := l.World()
			if err != nil {
				b.Fatal(err)
			}

			addresses := make([]uintptr, bufferCount)
			for i := range addresses {
				addresses[i], err = l.Alloc(mainPool, bufferBytes, defaultStream, noSite)
				if err != nil {
					b.Fatal(err)
				}
			}

			tensor := addresses[bufferCount/2] + tensorOffset
			call := &Arguments{
				Operation: int(symmem.OpAllReduce), Count: elements, Send: tensor, Recv: tensor,
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
