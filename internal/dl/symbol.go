package dl

import (
	"runtime"
	"sync"

	"github.com/ebitengine/purego"
)

// Symbol is the address of a C function. It stays valid until the process exits.
//
// On Linux and amd64, calls with up to directArguments arguments use assembly of this package. All
// other calls use package purego and take about twice as long.
type Symbol uintptr

// MaxArguments is the maximum number of arguments of a call.
const MaxArguments = 32

// Call calls the function and returns the 64-bit result register. Convert the result if the
// function returns a smaller type, such as int (int32), because the other bits are undefined.
//
// The arguments must be integers or addresses. Addresses of Go memory must come from a Cell or
// AddressOf. Call panics if len(args) > MaxArguments.
func (s Symbol) Call(args ...uintptr) uintptr {
	if len(args) <= directArguments {
		return callDirectly(s, args)
	}

	return callWithPurego(s, args)
}

// argumentLists avoids an allocation for each call. purego lets its arguments escape to the heap.
var argumentLists = sync.Pool{New: func() any { return new([MaxArguments]uintptr) }}

func callWithPurego(s Symbol, args []uintptr) uintptr {
	if len(args) > MaxArguments {
		panic("dl: too many arguments")
	}

	list := argumentLists.Get().(*[MaxArguments]uintptr)
	n := copy(list[:], args)
	result, _, _ := purego.SyscallN(uintptr(s), list[:n]...)
	argumentLists.Put(list)
	return result
}

// Step is a C call that must precede another call on the same thread. For example, cuCtxSetCurrent
// sets the thread's CUDA context for cuMemAlloc. The zero Step does nothing.
type Step struct {
	Function Symbol                   // returns a status, which is 0 on success
	Argument uintptr                  // the only argument of Function
	NewError func(status int32) error // describes a status other than 0
}

// CallAfterStep calls step and then s on the same thread, and returns the status of s. If step
// fails, CallAfterStep does not call s, and returns the status of step and false.
//
// The rules for the arguments of Call apply. Each status must be at least 0 and less than 1<<30.
// step must not call back into Go.
func (s Symbol) CallAfterStep(step *Step, args ...uintptr) (status int32, ok bool) {
	if len(args) <= directArguments {
		calls := frame{
			function: uintptr(s), step: uintptr(step.Function), argument: step.Argument,
		}
		copy(calls.arguments[:], args)
		return callForStatus(&calls)
	}

	return callAfterWithPurego(step.Function, step.Argument, s, args)
}

func callAfterWithPurego(
	stepFunction Symbol, stepArgument uintptr, s Symbol, args []uintptr,
) (status int32, ok bool) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if stepFunction != 0 {
		stepStatus := int32(callWithPurego(stepFunction, []uintptr{stepArgument}))
		if stepStatus != 0 {
			return stepStatus, false
		}
	}

	status = int32(callWithPurego(s, args))
	return status, true
}
