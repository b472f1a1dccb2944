package dl

import (
	"runtime"
	"sync"

	"github.com/ebitengine/purego"
)

// A C function is called in one of two ways. On Linux and amd64, a call with up to directArguments
// arguments is made by assembly of this package. All other calls are made by package purego, which
// takes about twice the time.

// Symbol is the address of a C function. It stays valid until the process exits.
type Symbol uintptr

// MaxArguments is the maximum number of arguments of a call.
const MaxArguments = 32

// Call calls the function and returns the 64-bit result register. Only the bits of the result's
// type are meaningful, for example the lower 32 for an int. Call panics if there are more than
// MaxArguments arguments.
//
// The arguments must be integers or addresses. Addresses of Go memory must come from a Cell or
// AddressOf.
func (s Symbol) Call(args ...uintptr) uintptr {
	if len(args) <= directArguments {
		return callDirectly(s, args)
	}

	return callWithPurego(s, args)
}

// argumentLists holds argument lists for reuse. purego needs them in heap memory.
var argumentLists = sync.Pool{New: func() any { return new([MaxArguments]uintptr) }}

// callWithPurego is Call for any number of arguments and any processor.
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

// Step is a C call that must precede another one on the same thread. For example, cuMemAlloc
// allocates memory in the thread's current CUDA context, so cuCtxSetCurrent(context) must precede
// it. The zero Step does nothing.
type Step struct {
	Function Symbol  // returns a status, which is 0 on success; 0 in the zero Step
	Argument uintptr // the only argument of Function
	// NewError returns an error for a status of Function other than 0.
	NewError func(status int32) error
}

// CallAfterStep calls step and then s on the same thread. It returns the 32-bit status that s
// returns, and true. If step fails, it does not call s, and returns the status of step and false.
//
// The preconditions are those of Call. A status must not be negative or have bit 30 set. step must
// not call back into Go.
func (s Symbol) CallAfterStep(step *Step, args ...uintptr) (status int32, ok bool) {
	if len(args) <= directArguments {
		f := frame{
			function: uintptr(s), step: uintptr(step.Function), argument: step.Argument,
		}
		copy(f.arguments[:], args)
		return callForStatus(&f)
	}

	return callAfterWithPurego(uintptr(step.Function), step.Argument, s, args)
}

// callAfterWithPurego is CallAfterStep for any number of arguments and any processor. step and
// argument are the fields of a Step.
func callAfterWithPurego(
	step, argument uintptr, s Symbol, args []uintptr,
) (status int32, ok bool) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if step != 0 {
		stepStatus := int32(callWithPurego(Symbol(step), []uintptr{argument}))
		if stepStatus != 0 {
			return stepStatus, false
		}
	}

	status = int32(callWithPurego(s, args))
	return status, true
}
