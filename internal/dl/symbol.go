package dl

import (
	"runtime"
	"sync"

	"github.com/ebitengine/purego"
)

// MaxArguments is the maximum number of arguments of a call.
const MaxArguments = 32

// Symbol is the address of a C function. It stays valid until the process exits.
type Symbol uintptr

// lists holds argument lists for reuse. Without reuse, each call would allocate a list, because
// lists that are passed to purego escape to the heap.
var lists = sync.Pool{New: func() any { return new([MaxArguments]uintptr) }}

// Call calls the function with the C calling convention and returns the result register. If the
// function's result is narrower than 64 bits, only the low bits are meaningful. Call blocks the
// thread while C runs. It does not allocate. It panics if there are more than MaxArguments
// arguments.
//
// Preconditions: the arguments match the function's declaration. All of them are integers or
// addresses, because floating-point numbers are passed in other registers. Addresses of Go
// memory come from a Cell or AddressOf. As in C, a violation is undefined behavior.
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

// Step describes a call that must precede another call, for example to make a context current on
// the thread. Function takes one argument and returns a status, which is 0 on success. The zero
// Step does nothing.
type Step struct {
	Function Symbol
	Argument uintptr
	// NewError converts the status of a failed step to an error.
	NewError func(status int32) error
}

// StatusAfter first makes the call described by step and then calls s, which returns a 32-bit
// status. Both run on the same thread. StatusAfter enters C only once, so it takes little longer
// than a single call. If the step fails, StatusAfter returns the step's status and false, and
// does not call s.
//
// Preconditions: those of Call. No status of the step or of s is negative or has bit 30 set. The
// step does not call back into Go, because that could move the stack that holds the arguments.
func (s Symbol) StatusAfter(step *Step, args ...uintptr) (status int32, ok bool) {
	if len(args) <= directArguments {
		f := frame{
			function: uintptr(s), step: uintptr(step.Function), argument: step.Argument,
		}
		copy(f.arguments[:], args)
		return directStatus(&f)
	}
	return generalAfter(uintptr(step.Function), step.Argument, s, args)
}

func generalAfter(
	step, argument uintptr, s Symbol, args []uintptr,
) (status int32, ok bool) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if step != 0 {
		if status := int32(general(Symbol(step), []uintptr{argument})); status != 0 {
			return status, false
		}
	}
	return int32(general(s, args)), true
}
