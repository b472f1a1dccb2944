// Package dl opens shared objects at run time and calls their functions, without cgo and without
// a C compiler. Nothing else in symmem imports purego.
//
// Three rules keep calls into C safe, and callers must know them:
//
//   - A goroutine's stack moves while it runs, so C must never be handed the address of a local
//     variable. Results are received in a Cell, and what C reads lies in a Cell or is
//     named by AddressOf: both are memory of the heap, which Go does not move.
//   - Whatever C keeps after the call has to stay reachable from Go for as long as C keeps it.
//   - Many libraries keep state for each thread of the operating system (the current CUDA
//     context, NCCL's groups, dlerror). A sequence of calls that relies on such state runs
//     between runtime.LockOSThread and runtime.UnlockOSThread.
//
// A library is never closed: CUDA and NCCL have threads and exit handlers of their own, whose
// code must stay.
package dl
