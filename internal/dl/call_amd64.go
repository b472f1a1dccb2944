//go:build linux

package dl

import (
	"sync"
	"unsafe"
)

// directArguments is how many arguments a direct call can have.
const directArguments = maxPrepared

// refused marks the status of a first call that went wrong. It is above all statuses.
const refused = 1 << 30

// results are used again, so that calls do not allocate. They are not on the stack, which may move
// when C calls back.
var results = sync.Pool{New: func() any { return new(uintptr) }}

// cgocall runs a C function on a stack of the system and tells the scheduler about it. The runtime
// keeps the name and the signature for packages that call C without cgo (go.dev/issue/67401).
//
//go:linkname cgocall runtime.cgocall
//go:noescape
func cgocall(function uintptr, argument unsafe.Pointer) int32

// callABI0 is the address of call in call_amd64.s.
var callABI0 uintptr

// direct makes a call with few arguments, in about half the time that one with many takes.
func direct(s Symbol, args []uintptr) uintptr {
	result := results.Get().(*uintptr)
	f := frame{function: uintptr(s), result: uintptr(unsafe.Pointer(result))}
	copy(f.arguments[:], args)
	cgocall(callABI0, unsafe.Pointer(&f))
	value := *result
	results.Put(result)
	return value
}

// directStatus is direct for a status, which needs no memory but the frame.
func directStatus(f *frame) (status int32, ok bool) {
	status = cgocall(callABI0, unsafe.Pointer(f))
	if f.first != 0 && status&refused != 0 {
		return status &^ refused, false
	}
	return status, true
}
