// Package cuda is the part of the CUDA driver's interface that symmem needs, over a libcuda that
// is opened at run time. Names, numbers and layouts are those of cuda.h of CUDA 12.9; nothing
// here needs that header, a toolkit or a C compiler.
//
// CUDA keeps a current context for each thread of the operating system. Methods act on that of
// the calling thread unless they say otherwise, so a goroutine calls runtime.LockOSThread, then
// Driver.SetCurrent, and only then the others. Methods that only take a Device need no context.
//
// Handles are owned by whoever made them and are plain numbers: nothing here counts references or
// gives back by itself. All methods are safe for use by several goroutines as far as CUDA is, which
// is said to be thread-safe but for the destruction of what another thread uses.
//
// Calls return *Error, which matches the Code constants by errors.Is. An error may be that of work
// queued earlier: CUDA reports those at whatever call comes next, and after one such as
// ErrIllegalAddress the context is lost.
package cuda
