// Package dl opens shared objects at run time and calls their functions, without cgo and without a
// C compiler. No other package of symmem imports purego.
//
// Calls into C are safe only if callers follow three rules:
//
//   - A goroutine's stack may move while the goroutine runs, so C must never get the address of a
//     local variable. Pass memory to C in a Cell, or take its address with AddressOf: both put it
//     on the heap, where Go does not move objects.
//   - Memory that C uses after the call must stay reachable from Go for as long as C uses it.
//   - Many libraries keep state per operating system thread (the current CUDA context, NCCL's
//     groups, dlerror). Calls that rely on such state must run between runtime.LockOSThread and
//     runtime.UnlockOSThread.
//
// Libraries are never closed, because CUDA and NCCL have threads and exit handlers whose code must
// stay loaded.
package dl
