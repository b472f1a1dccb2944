package dl

import (
	"sync"

	"github.com/ebitengine/purego"
)

// MaxArguments is the largest number of arguments of a call.
const MaxArguments = 32

// Symbol is the address of a C function. It is valid for as long as the process runs.
type Symbol uintptr

// frames hold the arguments of calls that are on their way. purego lets a list of arguments
// escape to the heap; a list that is used again costs nothing.
var frames = sync.Pool{New: func() any { return new([MaxArguments]uintptr) }}

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
	if len(args) > MaxArguments {
		panic("dl: too many arguments")
	}
	f := frames.Get().(*[MaxArguments]uintptr)
	n := copy(f[:], args)
	result, _, _ := purego.SyscallN(uintptr(s), f[:n]...)
	frames.Put(f)
	return result
}
