// Package cuda binds the part of the CUDA driver API that symmem needs, using a libcuda that it
// opens at run time. Names, numbers and layouts are those of cuda.h of CUDA 12.9; neither that
// header nor a toolkit or a C compiler is needed.
//
// CUDA keeps a current context for each operating system thread. Methods use the context of the
// calling thread unless they state otherwise. So a goroutine calls runtime.LockOSThread, then
// Driver.SetCurrent, and then other methods. Methods of Device need no context.
//
// Handles are plain numbers, owned by the caller that created them: nothing is reference-counted or
// freed automatically. Methods may be called concurrently as far as CUDA permits it: an object must
// not be destroyed while another thread uses it.
//
// Calls return *Error, which matches the Code constants with errors.Is. An error may belong to work
// that was queued earlier: CUDA reports it at a later call, and after errors such as
// ErrIllegalAddress the context is unusable.
package cuda
