// Package cuda binds the part of the CUDA driver API that symmem needs. It opens libcuda at run
// time. Names, numbers and layouts match cuda.h of CUDA 12.9. The package needs no header, no CUDA
// toolkit and no C compiler.
//
// CUDA keeps a current context for each operating system thread. Methods use the context of the
// calling thread unless they state otherwise, so a goroutine must call runtime.LockOSThread and
// Driver.SetCurrent before it calls other methods. Methods of Device need no context.
//
// Handles are plain numbers, and the caller that creates one owns it. Nothing is
// reference-counted or freed automatically. Methods may be called concurrently to the extent
// that CUDA permits it; for example, an object must not be destroyed while another thread uses
// it.
//
// Errors are of type *Error, and errors.Is matches them with the Code constants. CUDA may report
// the failure of queued work as the error of a later, unrelated call. After errors such as
// ErrIllegalAddress, the context is unusable.
package cuda
