//go:build linux

package dl

import (
	"sync"
	"unsafe"
)

// directArguments is how many arguments direct passes: six in registers, four on the stack.
const directArguments = 10

// frame is a call on its way, as call_amd64.s reads it.
type frame struct {
	function  uintptr
	arguments [directArguments]uintptr
	result    uintptr
}

// frames are used again, so that calls do not allocate. They are not on the stack, which may move
// when C calls back.
var directFrames = sync.Pool{New: func() any { return new(frame) }}

// cgocall runs a C function on a stack of the system and tells the scheduler about it. The runtime
// keeps the name and the signature for packages that call C without cgo (go.dev/issue/67401).
//
//go:linkname cgocall runtime.cgocall
func cgocall(function uintptr, argument unsafe.Pointer) int32

// callABI0 is the address of call in call_amd64.s.
var callABI0 uintptr

// direct makes a call with few arguments, in about half the time that one with many takes.
func direct(s Symbol, args []uintptr) uintptr {
	f := directFrames.Get().(*frame)
	f.function = uintptr(s)
	copy(f.arguments[:], args)
	cgocall(callABI0, unsafe.Pointer(f))
	result := f.result
	directFrames.Put(f)
	return result
}
