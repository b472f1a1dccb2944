// Package dl opens shared objects at run time and calls their functions, without cgo. No other
// package of symmem imports purego.
//
// Callers must follow three rules:
//
//   - C must never get the address of a local variable, because a goroutine's stack may move. Use a
//     Cell or AddressOf, which put memory on the heap.
//   - Memory must stay reachable from Go for as long as C uses it.
//   - Calls that rely on a library's state per thread, such as the current CUDA context, need
//     runtime.LockOSThread.
//
// Libraries are never closed, because CUDA and NCCL have threads and exit handlers.
package dl
