// Package dl opens shared objects at run time and calls their functions, without cgo and without a
// C compiler. No other package of symmem imports purego.
//
// Callers must follow three rules to make calls into C safe:
//
//   - A goroutine's stack may move while it runs, so C must never get the address of a local
//     variable. Memory for C is in a Cell, or AddressOf determines its address. Both kinds are on
//     the heap, where Go does not move objects.
//   - Memory that C uses after the call must stay reachable from Go for as long as C uses it.
//   - Many libraries keep state per operating system thread (the current CUDA context, NCCL's
//     groups, dlerror). Calls that rely on such state must run between runtime.LockOSThread and
//     runtime.UnlockOSThread.
//
// Libraries are never closed, because CUDA and NCCL have threads and exit handlers whose code must
// stay loaded.
package dl
