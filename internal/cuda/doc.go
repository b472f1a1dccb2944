// Package cuda binds the part of the CUDA driver API that symmem needs. It opens libcuda at run
// time, without cgo. Names, numbers and layouts match cuda.h of CUDA 12.9.
//
// CUDA keeps a current context for each thread. Methods use the context of the calling thread
// unless they state otherwise, so a goroutine must call runtime.LockOSThread and Driver.SetCurrent
// first, or use Driver.In.
//
// Handles are plain numbers. The caller that creates one owns it, and nothing is freed
// automatically. Methods may be called concurrently as far as CUDA permits it.
//
// Errors are of type *Error, and errors.Is matches them with the Code constants. CUDA may report
// the failure of queued work as the error of a later, unrelated call. After errors such as
// ErrIllegalAddress, the context is unusable.
package cuda
