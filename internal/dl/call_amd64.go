//go:build linux

package dl

import (
	"sync"
	"unsafe"
)

// directArguments is the maximum number of arguments of a call without purego.
const directArguments = maxFrameArguments

// stepFailed is a bit that the assembly code sets in the status of a failed step. Libraries return
// no status with this bit.
const stepFailed = 1 << 30

// results holds result variables for reuse. They cannot be on the stack, which may move if C calls
// back into Go.
var results = sync.Pool{New: func() any { return new(uintptr) }}

// cgocall runs a C function on a system stack and informs the scheduler. The Go runtime keeps its
// name and signature stable (go.dev/issue/67401).
//
//go:linkname cgocall runtime.cgocall
//go:noescape
func cgocall(function uintptr, argument unsafe.Pointer) int32

// callABI0 is the address of the function in call_amd64.s.
var callABI0 uintptr

// callDirectly is Call for at most directArguments arguments. It takes about half the time of
// callWithPurego.
func callDirectly(s Symbol, args []uintptr) uintptr {
	result := results.Get().(*uintptr)
	f := frame{function: uintptr(s), result: uintptr(unsafe.Pointer(result))}
	copy(f.arguments[:], args)
	cgocall(callABI0, unsafe.Pointer(&f))
	value := *result
	results.Put(result)
	return value
}

// callForStatus calls the step and the function of f. It returns the results of CallAfterStep.
func callForStatus(f *frame) (status int32, ok bool) {
	status = cgocall(callABI0, unsafe.Pointer(f))
	hasStepFailed := f.step != 0 && status&stepFailed != 0
	if hasStepFailed {
		return status &^ stepFailed, false
	}

	return status, true
}
