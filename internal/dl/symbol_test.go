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

	const text = "seven letters, or more"
	cText := dl.CString(text)
	length := libcFunction(t, "strlen").Call(dl.AddressOf(cText))
	runtime.KeepAlive(cText)
	if length != uintptr(len(text)) {
		t.Errorf("strlen(%q) = %d, want %d", text, length, len(text))
	}

	const minusSeven = ^uintptr(0) - 6
	if got := int32(libcFunction(t, "abs").Call(minusSeven)); got != 7 {
		t.Errorf("abs(-7) = %d, want 7", got)
	}
}

// The C function has more arguments than registers can hold. It multiplies each by another number,
// so that a lost or exchanged argument changes the sum.
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

	sum := find(t, library, "sum")
	got := sum.Call(1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11)
	const want = 1_320_987_654_321 // 12e11 + 11e10 + 10e9 + 9e8 and so on
	if got != want {
		t.Errorf("sum() = %d, want %d", got, want)
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
	src := bytes.Repeat([]byte("symmem"), 9)
	dst := make([]byte, len(src))
	libcFunction(t, "memcpy").Call(
		dl.AddressOf(&dst[0]), dl.AddressOf(&src[0]), uintptr(len(src)))
	runtime.KeepAlive(src)
	if !bytes.Equal(src, dst) {
		t.Errorf("memcpy copied %q, want %q", dst, src)
	}
}

// growStack makes the goroutine's stack grow by n KiB or more, which moves it to other addresses.
// The result has no meaning: it only keeps the compiler from removing the frames.
func growStack(n int) byte {
	var frame [1024]byte
	frame[n%len(frame)] = byte(n)
	if n == 0 {
		runtime.GC()
		return frame[0]
	}

	return growStack(n-1) + frame[n%len(frame)]
}

// A C function gets the addresses of a cell and of a Go variable. It calls back into Go, where the
// stack of the goroutine moves. Values that C writes afterwards must arrive nevertheless.
func TestResultsSurviveMovingStack(t *testing.T) {
	path := dltest.Compile(t, "liblate.so", `
void late(unsigned *cell, unsigned *variable, void (*meanwhile)(void *)) {
	meanwhile(0);
	*cell = 0xee928bdf;
	*variable += 1;
}`)
	library, err := dl.Open(path)
	if err != nil {
		t.Fatal(err)
	}

	late := find(t, library, "late")
	callback := dl.Callback(func(uintptr) { growStack(500) })
	type results struct{ cell, variable uint32 }
	want := results{cell: 0xee928bdf, variable: 42}
	done := make(chan results)
	// Each call needs a new goroutine, because only that has a small stack.
	go func() {
		cell := dl.NewCell(uint32(0))
		variable := uint32(41)
		late.Call(cell.Address(), dl.AddressOf(&variable), callback)
		done <- results{cell: cell.Take(), variable: variable}
	}()
	if got := <-done; got != want {
		t.Errorf("Call: results are %#x, want %#x", got, want)
	}

	go func() {
		cell := dl.NewCell(uint32(0))
		variable := uint32(41)
		late.CallAfterStep(&dl.Step{}, cell.Address(), dl.AddressOf(&variable), callback)
		done <- results{cell: cell.Take(), variable: variable}
	}()
	if got := <-done; got != want {
		t.Errorf("CallAfterStep: results are %#x, want %#x", got, want)
	}
}

// statusLibrary is the C source of the functions that TestStatusAfterStep calls. Their arguments
// are more than registers can hold. sum and sum_of_more return a weighted sum of them and of the
// last argument of enter on the same thread. called returns the number of calls of both.
const statusLibrary = `
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
int called(void) { return calls; }`

// TestStatusAfterStep calls a function after a step, which is a call of another function, here
// enter. If the step fails, its status must be returned, and the function must not be called.
func TestStatusAfterStep(t *testing.T) {
	path := dltest.Compile(t, "libstatus.so", statusLibrary)
	library, err := dl.Open(path)
	if err != nil {
		t.Fatal(err)
	}

	sum := find(t, library, "sum")
	sumOfMore := find(t, library, "sum_of_more")
	enter := find(t, library, "enter")
	called := find(t, library, "called")
	const (
		sumOfTwelve   = 650               // 1*1 + 2*2 and so on to 12*12
		sumOfThirteen = sumOfTwelve + 169 // 13*13
		failingStatus = 7                 // of enter, for negative arguments
	)
	twelve := []uintptr{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	thirteen := slices.Concat(twelve, []uintptr{13})
	noStep := dl.Step{}
	add1000 := dl.Step{Function: enter, Argument: 1000}
	failingStep := dl.Step{Function: enter, Argument: ^uintptr(0)} // -1
	for name, c := range map[string]struct {
		function   dl.Symbol
		args       []uintptr
		step       dl.Step
		wantStatus int32
		wantOK     bool // whether the step succeeds and the function is called
	}{
		"no step": {
			function: sum, args: twelve, step: noStep,
			wantStatus: sumOfTwelve, wantOK: true,
		},
		"a successful step": {
			function: sum, args: twelve, step: add1000,
			wantStatus: sumOfTwelve + 1000, wantOK: true,
		},
		"a failing step": {
			function: sum, args: twelve, step: failingStep,
			wantStatus: failingStatus, wantOK: false,
		},
		"no step, thirteen arguments": {
			function: sumOfMore, args: thirteen, step: noStep,
			wantStatus: sumOfThirteen, wantOK: true,
		},
		"a successful step, thirteen arguments": {
			function: sumOfMore, args: thirteen, step: add1000,
			wantStatus: sumOfThirteen + 1000, wantOK: true,
		},
		"a failing step, thirteen arguments": {
			function: sumOfMore, args: thirteen, step: failingStep,
			wantStatus: failingStatus, wantOK: false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			enter.Call(0) // undo the step of another case, which may have used this thread
			callsBefore := called.Call()
			status, ok := c.function.CallAfterStep(&c.step, c.args...)
			if status != c.wantStatus || ok != c.wantOK {
				t.Errorf("CallAfterStep = %d, %v; want %d, %v", status, ok, c.wantStatus, c.wantOK)
			}

			if len(c.args) == len(twelve) { // Prepare accepts no more arguments
				prepared := c.function.Prepare(&c.step, c.args...)
				checkPreparedCall(t, &prepared, c.wantStatus, c.wantOK)
			}

			wasCalled := called.Call() > callsBefore
			if wasCalled != c.wantOK {
				t.Errorf("the function was called: %v, want %v", wasCalled, c.wantOK)
			}
		})
	}
}

// checkPreparedCall changes the last of twelve arguments of a prepared call, and makes the call.
// wantStatus is the result without the change.
func checkPreparedCall(t *testing.T, prepared *dl.Invocation, wantStatus int32, wantOK bool) {
	t.Helper()
	prepared.Set(11, 12+10) // the last argument, which is multiplied by 12
	if wantOK {
		wantStatus += 12 * 10
	}

	status, ok := prepared.Call()
	if status != wantStatus || ok != wantOK {
		t.Errorf("prepared Call = %d, %v; want %d, %v", status, ok, wantStatus, wantOK)
	}
}

// A cell is heap memory for a value of up to 128 bytes, which C can use because it does not move.
func TestCellHoldsValue(t *testing.T) {
	type pair struct {
		a uint64
		b int32
	}
	pairValue := pair{a: 1, b: 2}
	arrayValue := [128]byte{127: 9} // of the maximum size
	pairCell := dl.NewCell(pairValue)
	arrayCell := dl.NewCell(arrayValue)
	if pairCell.Address() == arrayCell.Address() {
		t.Errorf("both cells are at %#x, want different addresses", pairCell.Address())
	}

	if pairCell.Address()%8 != 0 {
		t.Errorf("a cell is at %#x, want a multiple of 8", pairCell.Address())
	}

	if got := dl.Read[pair](pairCell.Address()); got != pairValue {
		t.Errorf("Load = %v, want %v", got, pairValue)
	}

	if got := pairCell.Take(); got != pairValue {
		t.Errorf("Take = %v, want %v", got, pairValue)
	}

	if got := arrayCell.Take(); got != arrayValue {
		t.Errorf("Take = %v, want %v", got, arrayValue)
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
