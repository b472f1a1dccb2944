package binding

import (
	"errors"
	"strings"
	"testing"

	"symmem"
)

func TestCallsFindBufferOfTensor(t *testing.T) {
	l, counters := openLibrary(t, hostOptions)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}
	address, err := l.Alloc(mainPool, 4096, defaultStream, noSite)
	if err != nil {
		t.Fatal(err)
	}
	call := &Arguments{
		Operation: int(symmem.OpAllReduce), Count: 256, Send: address + 2048, Recv: address + 2048,
	}
	text, err := l.Explain(world, call)
	if err != nil || !strings.Contains(text, `"registers":true`) {
		t.Errorf("Explain before the first call = %s, %v; want a registration", text, err)
	}
	windowsBefore := counters.Windows.Load()
	err = l.Do(world, call)
	hasNewWindow := counters.Windows.Load() != windowsBefore
	if err != nil || !hasNewWindow {
		t.Errorf("first call: error %v, new window %v; want success and a new window", err,
			hasNewWindow)
	}
	call.Count++
	if err := l.Do(world, call); !errors.Is(err, symmem.ErrOutOfRange) {
		t.Errorf("call past the end of the buffer: got %v, want %v", err, symmem.ErrOutOfRange)
	}
	call.Count--
	if err := l.Free(address, true); err != nil {
		t.Fatal(err)
	}
	if err := l.Do(world, call); !errors.Is(err, symmem.ErrFreed) {
		t.Errorf("call on a freed buffer: got %v, want %v", err, symmem.ErrFreed)
	}
	if _, err := l.Explain(world, call); !errors.Is(err, symmem.ErrFreed) {
		t.Errorf("Explain of a freed buffer: got %v, want %v", err, symmem.ErrFreed)
	}
}

func TestNormErrorsNameTheArgument(t *testing.T) {
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
		{99, 64, "element type 99 does not exist"},
		{0, 64, "the norm does not support float64"},
		{1, 64, "the norm does not support float32"},
		{2, 60, "rows have 60 elements"},
	} {
		err := l.Norm(world, &NormArguments{Type: row.elementType, Rows: 1, Hidden: row.hidden})
		if !errors.Is(err, symmem.ErrInvalid) || !strings.Contains(err.Error(), row.want) {
			t.Errorf("norm of type %d with %d elements = %v, want ErrInvalid with %q", row.elementType,
				row.hidden, err, row.want)
		}
	}
}

const bfloat16Type = 3 // SYMMEM_BFLOAT16

func TestRouteErrorsNameTheArgument(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		change func(a *RouteArguments)
		want   string
	}{
		{func(a *RouteArguments) { a.Type = 99 }, "element type 99 does not exist"},
		{func(a *RouteArguments) { a.TopK = 17 }, "17 experts per token"},
		{func(a *RouteArguments) { a.Experts = 0 }, "0 experts"},
		{func(a *RouteArguments) { a.MaxTokens = 1 << 62 }, "tokens per rank"},
		{func(a *RouteArguments) { a.Tokens = -1 }, "-1 tokens"},
		{func(a *RouteArguments) { a.Hidden = 1 << 62 }, "rows have"},
	} {
		a := &RouteArguments{Experts: 4, TopK: 1, MaxTokens: 4, Hidden: 64, Type: bfloat16Type}
		row.change(a)
		for _, combines := range []bool{false, true} {
			err := l.Route(world, a, combines, defaultStream, noSite)
			if !errors.Is(err, symmem.ErrInvalid) || !strings.Contains(err.Error(), row.want) {
				t.Errorf("Route(%+v), combines %v: got %v, want ErrInvalid with %q", a, combines, err,
					row.want)
			}
		}
	}
}

func TestPermuteErrorsNameTheArgument(t *testing.T) {
	l, _ := openLibrary(t, hostOptions)
	world, err := l.World()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		change func(a *PermuteArguments)
		want   string
	}{
		{func(a *PermuteArguments) { a.Type = 99 }, "element type 99 does not exist"},
		{func(a *PermuteArguments) { a.TopK = 17 }, "17 experts per token"},
		{func(a *PermuteArguments) { a.MaxTokens = 1 << 62 }, "tokens per rank"},
		{func(a *PermuteArguments) { a.Hidden = 1 << 62 }, "rows have"},
		{func(a *PermuteArguments) { a.Align = 1 << 62 }, "aligned to"},
	} {
		a := &PermuteArguments{Experts: 4, TopK: 1, MaxTokens: 4, Hidden: 64, Type: bfloat16Type}
		row.change(a)
		for _, reverses := range []bool{false, true} {
			err := l.Permute(world, a, reverses, defaultStream)
			if !errors.Is(err, symmem.ErrInvalid) || !strings.Contains(err.Error(), row.want) {
				t.Errorf("Permute(%+v), reverses %v: got %v, want ErrInvalid with %q", a, reverses, err,
					row.want)
			}
		}
	}
}

func TestDurationsAreBounded(t *testing.T) {
	for _, o := range []Options{
		{TimeoutMS: -1}, {CheckIntervalMS: -1 << 62}, {WarnAfterMS: -1 << 62}, {TimeoutMS: 1 << 62},
	} {
		if _, err := o.runtimeOptions(); !errors.Is(err, symmem.ErrInvalid) {
			t.Errorf("options %+v: got %v, want ErrInvalid", o, err)
		}
	}
}

// BenchmarkDo measures a call on a range in the middle of the given number of buffers.
func BenchmarkDo(b *testing.B) {
	for _, row := range []struct {
		name    string
		buffers int
	}{{"buffers=4", 4}, {"buffers=400", 400}} {
		b.Run(row.name, func(b *testing.B) {
			counters := &Counters{}
			l := New(counters, func(text string) { b.Error(text) })
			if err := l.Open([]byte(hostOptions)); err != nil {
				b.Fatal(err)
			}
			defer func() { _ = l.Close(true) }()
			world, err := l.World()
			if err != nil {
				b.Fatal(err)
			}
			var middle uintptr
			for i := range row.buffers {
				address, err := l.Alloc(mainPool, 1<<16, defaultStream, noSite)
				if err != nil {
					b.Fatal(err)
				}
				if i == row.buffers/2 {
					middle = address + 4096
				}
			}
			call := &Arguments{Operation: int(symmem.OpAllReduce), Count: 64, Send: middle, Recv: middle}
			b.ReportAllocs()
			for b.Loop() {
				if err := l.Do(world, call); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
