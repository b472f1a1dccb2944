// Package cuda binds the part of the CUDA driver API that symmem needs. It opens libcuda at run
// time, without cgo. Names, numbers and layouts match cuda.h of CUDA 12.9.
//
// Methods use the calling thread's current context unless they state otherwise: call
// runtime.LockOSThread and Driver.SetCurrent first, or use Driver.InContext.
//
// The caller that creates a handle owns it. Methods may be called concurrently as far as CUDA
// permits it.
//
// Errors are of type *Error, and errors.Is matches them with the Code constants. CUDA may report
// the failure of queued work in a later, unrelated call. After errors such as ErrIllegalAddress,
// the context is unusable.
package cuda
