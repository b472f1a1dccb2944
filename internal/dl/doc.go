// Package dl opens shared objects at run time and calls their functions, without cgo. No other
// package of symmem imports purego.
//
// Callers must follow three rules:
//
//   - A goroutine's stack may move, so C must never get the address of a local variable. Pass
//     memory to C in a Cell, or take its address with AddressOf. Both put the memory on the heap.
//   - Memory must stay reachable from Go for as long as C uses it.
//   - Calls that rely on a library's state per thread (the current CUDA context, NCCL's groups)
//     must run between runtime.LockOSThread and runtime.UnlockOSThread.
//
// Libraries are never closed, because CUDA and NCCL have threads and exit handlers.
package dl
