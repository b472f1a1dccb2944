package dl

import (
	"runtime"
	"sync"

	"github.com/ebitengine/purego"
)

// Symbol is the address of a C function. It stays valid until the process exits.
//
// On Linux and amd64, calls with up to twelve arguments use assembly of this package. Other
// calls use package purego and take about twice as long.
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

// argumentLists holds memory for the arguments of purego, which escape to the heap.
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

// maxFrameArguments is the maximum number of arguments of a call that a frame describes. C passes
// six of them in registers, and the others on the stack.
const maxFrameArguments = 12

// frame describes a call for the assembly code in call_amd64.s, which relies on this layout.
type frame struct {
	function     uintptr                    // to call
	arguments    [maxFrameArguments]uintptr // of function
	step         uintptr                    // function to call before, or 0
	stepArgument uintptr                    // of step
	result       uintptr                    // address at which to store the 64-bit result, or 0
}

// CallAfterStep calls step and then s on the same thread, and returns the status of s. If step
// fails, CallAfterStep does not call s. It then returns the status of step, with ok set to false.
//
// The rules for the arguments of Call apply. Each status must be at least 0 and less than 1<<30.
// step must not call back into Go.
func (s Symbol) CallAfterStep(step *Step, args ...uintptr) (status int32, ok bool) {
	if len(args) <= directArguments {
		f := frame{
			function: uintptr(s), step: uintptr(step.Function), stepArgument: step.Argument,
		}
		copy(f.arguments[:], args)
		return callForStatus(&f)
	}

	return callBothWithPurego(step.Function, step.Argument, s, args)
}

func callBothWithPurego(
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

// Invocation is a prepared CallAfterStep, for repeated calls with nearly the same arguments. It is
// not safe for concurrent use.
type Invocation struct {
	frame frame
	count int // number of arguments
}

// Prepare returns an Invocation with the preconditions of CallAfterStep. It panics if there are
// more than twelve arguments.
func (s Symbol) Prepare(step *Step, args ...uintptr) Invocation {
	if len(args) > maxFrameArguments {
		panic("dl: too many arguments for an invocation")
	}

	i := Invocation{count: len(args)}
	i.frame.function = uintptr(s)
	i.frame.step = uintptr(step.Function)
	i.frame.stepArgument = step.Argument
	copy(i.frame.arguments[:], args)
	return i
}

// IsSet reports whether i is not the zero value.
func (i *Invocation) IsSet() bool { return i.frame.function != 0 }

// Set sets the argument with index n, counted from 0. It adds an argument if n is the number of
// arguments.
func (i *Invocation) Set(n int, value uintptr) {
	i.frame.arguments[n] = value
	i.count = max(i.count, n+1)
}

// Call makes the call as CallAfterStep does.
func (i *Invocation) Call() (status int32, ok bool) {
	if maxFrameArguments <= directArguments {
		return callForStatus(&i.frame)
	}

	f := &i.frame
	return callBothWithPurego(
		Symbol(f.step), f.stepArgument, Symbol(f.function), f.arguments[:i.count])
}
