//go:build linux

package dl

import (
	"sync"
	"unsafe"
)

// directArguments is the maximum number of arguments of a direct call.
const directArguments = maxPrepared

// refused marks the status of a failed first call. It is larger than all statuses.
const refused = 1 << 30

// results are reused, so that calls do not allocate. They are not on the stack, which may move when
// C calls back.
var results = sync.Pool{New: func() any { return new(uintptr) }}

// cgocall runs a C function on a system stack and informs the scheduler. The runtime keeps the name
// and the signature for packages that call C without cgo (go.dev/issue/67401).
//
//go:linkname cgocall runtime.cgocall
//go:noescape
func cgocall(function uintptr, argument unsafe.Pointer) int32

// callABI0 is the address of the function call in call_amd64.s.
var callABI0 uintptr

// direct makes a call with few arguments, in about half the time of the general way.
func direct(s Symbol, args []uintptr) uintptr {
	result := results.Get().(*uintptr)
	f := frame{function: uintptr(s), result: uintptr(unsafe.Pointer(result))}
	copy(f.arguments[:], args)
	cgocall(callABI0, unsafe.Pointer(&f))
	value := *result
	results.Put(result)
	return value
}

// directStatus makes a call that returns a status. It needs no memory besides the frame.
func directStatus(f *frame) (status int32, ok bool) {
	status = cgocall(callABI0, unsafe.Pointer(f))
	if f.first != 0 && status&refused != 0 {
		return status &^ refused, false
	}
	return status, true
}
