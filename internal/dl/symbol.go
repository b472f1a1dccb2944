package dl

import (
	"runtime"
	"sync"

	"github.com/ebitengine/purego"
)

// MaxArguments is the largest number of arguments of a call.
const MaxArguments = 32

// Symbol is the address of a C function. It is valid for as long as the process runs.
type Symbol uintptr

// lists hold the arguments of calls that are on their way. purego lets a list of arguments
// escape to the heap; a list that is used again costs nothing.
var lists = sync.Pool{New: func() any { return new([MaxArguments]uintptr) }}

// Call calls the function with the C calling convention and returns its result as a register
// holds it: of a result that is narrower than 64 bits only the low bits count. It blocks the
// thread for as long as C does, and does not allocate.
//
// Preconditions: the arguments are what the function's declaration wants, integers and addresses
// alone: floating-point numbers go in other registers. Addresses of Go memory come from Cell or
// AddressOf. Violating this is undefined, as in C; more than MaxArguments arguments panic.
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

// Step is a call with one argument that returns a status, 0 if it went well, and that another call
// needs: such as the one that makes a context current on the thread. The zero value is no call. It
// is immutable.
type Step struct {
	Function Symbol
	Argument uintptr
	// Refused makes an error of the status of a step that did not go well.
	Refused func(status int32) error
}

// StatusAfter is Call for a function whose result is a status of 32 bits, right behind a step on
// the same thread, for little more than one call takes, since C is entered once. If ok is false the
// step did not go well, the status is its own, and the function was not called.
//
// Preconditions: those of Call; no status of the step or the function is negative or has 2^30; and
// the step does not call Go, which could move the stack that the arguments are on.
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
