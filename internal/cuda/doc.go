// Package cuda binds the part of the CUDA driver API that symmem needs, using a libcuda that it
// opens at run time. Names, numbers and layouts match cuda.h of CUDA 12.9. Neither that header nor
// the CUDA toolkit nor a C compiler is needed.
//
// CUDA keeps a current context for each operating system thread. Methods use the context of the
// calling thread unless they state otherwise, so a goroutine must call runtime.LockOSThread and
// Driver.SetCurrent before it calls other methods. Methods of Device need no context.
//
// Handles are plain numbers, owned by the caller that created them: nothing is reference-counted or
// freed automatically. Methods may be called concurrently as far as CUDA permits it. For example,
// an object must not be destroyed while another thread uses it.
//
// Calls return *Error, which matches the Code constants with errors.Is. CUDA may report the failure
// of queued work as the error of a later, unrelated call. After errors such as ErrIllegalAddress
// the context is unusable.
package cuda
