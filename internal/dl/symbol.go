package dl

import (
	"runtime"
	"sync"

	"github.com/ebitengine/purego"
)

// MaxArguments is the maximum number of arguments of a call.
const MaxArguments = 32

// Symbol is the address of a C function. It is valid for as long as the process runs.
type Symbol uintptr

// lists holds the argument lists of pending calls. purego lets an argument list escape to the heap;
// reusing lists avoids the allocation.
var lists = sync.Pool{New: func() any { return new([MaxArguments]uintptr) }}

// Call calls the function with the C calling convention and returns the register that holds the
// result: for a result narrower than 64 bits only the low bits count. It blocks the thread for as
// long as C does, and does not allocate.
//
// Preconditions: the arguments match the function's declaration, which has integers and addresses
// only: floating-point numbers are passed in other registers. Addresses of Go memory come from Cell
// or AddressOf. Violating this is undefined, as in C; more than MaxArguments arguments panic.
func (s Symbol) Call(args ...uintptr) uintptr {
	if len(args) <= directArguments {
		return direct(s, args)
	}
	return general(s, args)
}

func general(s Symbol, args []uintptr) uintptr {
	if len(args) > MaxArguments {
		panic("dl: too many arguments")
	}
	f := lists.Get().(*[MaxArguments]uintptr)
	n := copy(f[:], args)
	result, _, _ := purego.SyscallN(uintptr(s), f[:n]...)
	lists.Put(f)
	return result
}

// Step is a call with one argument that returns a status, 0 for success, and that another call
// requires, for example to make a context current on the thread. The zero value is no call. It is
// immutable.
type Step struct {
	Function Symbol
	Argument uintptr
	// Refused converts the status of a failed step to an error.
	Refused func(status int32) error
}

// StatusAfter calls a function that returns a status of 32 bits, right after a step on the same
// thread. It takes little more time than a single call, since it enters C once. If ok is false the
// step failed, status is the step's, and the function was not called.
//
// Preconditions: those of Call; no status of the step or the function is negative or has bit 30
// set; and the step does not call back into Go, which could move the stack with the arguments.
func (s Symbol) StatusAfter(first *Step, args ...uintptr) (status int32, ok bool) {
	if len(args) <= directArguments {
		f := frame{
			function: uintptr(s), first: uintptr(first.Function), argument: first.Argument,
		}
		copy(f.arguments[:], args)
		return directStatus(&f)
	}
	return generalAfter(uintptr(first.Function), first.Argument, s, args)
}

func generalAfter(
	first, argument uintptr, s Symbol, args []uintptr,
) (status int32, ok bool) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if first != 0 {
		if status := int32(general(Symbol(first), []uintptr{argument})); status != 0 {
			return status, false
		}
	}
	return int32(general(s, args)), true
}
