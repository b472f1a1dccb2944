package dl_test

import (
	"bytes"
	"os"
	"runtime"
	"slices"
	"testing"

	"symmem/internal/dl"
	"symmem/internal/dl/dltest"
)

func TestCallReturnsResult(t *testing.T) {
	if got := int(libcFunction(t, "getpid").Call()); got != os.Getpid() {
		t.Errorf("getpid() = %d, want %d", got, os.Getpid())
	}
	text := dl.CString("seven letters, or more")
	length := libcFunction(t, "strlen").Call(dl.AddressOf(text))
	runtime.KeepAlive(text)
	if length != 22 {
		t.Errorf("strlen() = %d, want 22", length)
	}
	if got := int32(libcFunction(t, "abs").Call(uintptr(0xffff_ffff_ffff_fff9))); got != 7 {
		t.Errorf("abs(-7) = %d, want 7", got)
	}
}

func TestAllArgumentsArrive(t *testing.T) {
	path := dltest.Compile(t, "libsum.so", `
long sum(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j,
         long k, long l) {
	return a+2*b+3*c+4*d+5*e+6*f+7*g+8*h+9*i+10*j+11*k+12*l;
}`)
	library, err := dl.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	sum, _ := library.Find("sum")
	got := sum.Call(1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11)
	if got != 1320987654321 {
		t.Errorf("sum() = %d, want 1320987654321", got)
	}
}

func TestTooManyArgumentsPanic(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("Call with too many arguments did not panic")
		}
	}()
	libcFunction(t, "getpid").Call(make([]uintptr, dl.MaxArguments+1)...)
}

func TestCWritesGoMemory(t *testing.T) {
	src, dst := bytes.Repeat([]byte("symmem"), 9), make([]byte, 54)
	libcFunction(t, "memcpy").Call(dl.AddressOf(&dst[0]), dl.AddressOf(&src[0]), 54)
	runtime.KeepAlive(src)
	if !bytes.Equal(src, dst) {
		t.Errorf("memcpy copied %q, want %q", dst, src)
	}
}

// growStack makes the goroutine's stack grow, which moves it.
func growStack(n int) byte {
	var frame [1024]byte
	frame[n%len(frame)] = byte(n)
	if n == 0 {
		runtime.GC()
		return frame[0]
	}
	return growStack(n-1) + frame[n%len(frame)]
}

func TestResultsSurviveMovingStack(t *testing.T) {
	path := dltest.Compile(t, "liblate.so", `
void late(unsigned *out, unsigned *other, void (*meanwhile)(void *)) {
	meanwhile(0);
	*out = 0xee928bdf;
	*other += 1;
}`)
	library, err := dl.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	late, _ := library.Find("late")
	callback := dl.Callback(func(uintptr) { growStack(500) })
	done := make(chan [2]uint32)
	go func() { // a new goroutine has a small stack
		var other uint32 = 41
		out := dl.NewCell(uint32(0))
		late.Call(out.Address(), dl.AddressOf(&other), callback)
		done <- [2]uint32{out.Take(), other}
	}()
	if got := <-done; got != [2]uint32{0xee928bdf, 42} {
		t.Errorf("Call: results are %#x, want 0xee928bdf and 42", got)
	}
	go func() {
		out, other := dl.NewCell(uint32(0)), uint32(41)
		late.CallAfterStep(&dl.Step{}, out.Address(), dl.AddressOf(&other), callback)
		done <- [2]uint32{out.Take(), other}
	}()
	if got := <-done; got != [2]uint32{0xee928bdf, 42} {
		t.Errorf("CallAfterStep: results are %#x, want 0xee928bdf and 42", got)
	}
}

// TestStatusAfterStep calls functions after a step, enter. In C, the functions return a weighted
// sum of the arguments and of the step's argument. They have more arguments than registers can
// hold.
func TestStatusAfterStep(t *testing.T) {
	path := dltest.Compile(t, "libstatus.so", `
static __thread long entered;
static int calls;
int enter(long argument) { entered = argument; return argument < 0 ? 7 : 0; }
int sum(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j,
        long k, long l) {
	calls++;
	return entered+a+2*b+3*c+4*d+5*e+6*f+7*g+8*h+9*i+10*j+11*k+12*l;
}
int sum_of_more(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j,
                long k, long l, long m) {
	return sum(a,b,c,d,e,f,g,h,i,j,k,l) + 13*m;
}
int called(void) { return calls; }`)
	library, err := dl.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	sum, _ := library.Find("sum")
	sumOfMore, _ := library.Find("sum_of_more")
	enter, _ := library.Find("enter")
	called, _ := library.Find("called")
	twelve := []uintptr{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	thirteen := slices.Concat(twelve, []uintptr{13})
	const failingArgument = ^uintptr(0) // enter returns 7 for negative arguments
	for name, c := range map[string]struct {
		function dl.Symbol
		step     dl.Step
		args     []uintptr
		want     int32 // status
		ok       bool
	}{
		"no step":           {sum, dl.Step{}, twelve, 650, true},
		"a successful step": {sum, dl.Step{Function: enter, Argument: 1000}, twelve, 1650, true},
		"a failing step": {
			sum, dl.Step{Function: enter, Argument: failingArgument}, twelve, 7, false,
		},
		"no step, thirteen arguments": {sumOfMore, dl.Step{}, thirteen, 819, true},
		"a successful step, thirteen arguments": {
			sumOfMore, dl.Step{Function: enter, Argument: 1000}, thirteen, 1819, true,
		},
		"a failing step, thirteen arguments": {
			sumOfMore, dl.Step{Function: enter, Argument: failingArgument}, thirteen, 7, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			enter.Call(0) // undo the step of another case, which may have used this thread
			callsBefore := called.Call()
			status, ok := c.function.CallAfterStep(&c.step, c.args...)
			if status != c.want || ok != c.ok {
				t.Errorf("CallAfterStep = %d, %v; want %d, %v", status, ok, c.want, c.ok)
			}
			if len(c.args) <= 12 {
				prepared := c.function.Prepare(&c.step, c.args...)
				prepared.Set(11, 22) // change the last argument from 12 to 22
				status, ok := prepared.Call()
				if want := c.want + 12*10; ok && status != want || ok != c.ok {
					t.Errorf("Call of a prepared call = %d, %v; want %d, %v", status, ok, want, c.ok)
				}
			}
			wasCalled := called.Call() > callsBefore
			if wasCalled != c.ok {
				t.Errorf("the function was called: %v, want %v", wasCalled, c.ok)
			}
		})
	}
}

func TestCellHoldsValue(t *testing.T) {
	type pair struct {
		a uint64
		b int32
	}
	first := dl.NewCell(pair{1, 2})
	second := dl.NewCell([128]byte{127: 9})
	if first.Address() == second.Address() || first.Address()%8 != 0 {
		t.Errorf("cells are at %#x and %#x, want different aligned addresses",
			first.Address(), second.Address())
	}
	if got := dl.Load[pair](first.Address()); got != (pair{1, 2}) {
		t.Errorf("the first cell holds %v, want {1 2}", got)
	}
	if a, b := first.Take(), second.Take(); a != (pair{1, 2}) || b[127] != 9 {
		t.Errorf("Take = %v, %v; want {1 2} and an array whose last byte is 9", a, b)
	}
	defer func() {
		if recover() == nil {
			t.Error("NewCell with 129 bytes did not panic")
		}
	}()
	dl.NewCell([129]byte{})
}

func TestStringRoundTrip(t *testing.T) {
	for name, text := range map[string]string{"a word": "word", "empty": "", "bytes": "\xff\x01"} {
		t.Run(name, func(t *testing.T) {
			c := dl.CString(text)
			if got := dl.GoString(dl.AddressOf(c)); got != text {
				t.Errorf("GoString(CString(%q)) = %q; want the same text", text, got)
			}
			runtime.KeepAlive(c)
		})
	}
	if got := dl.GoString(0); got != "" {
		t.Errorf("GoString(0) = %q, want \"\"", got)
	}
}
