// Package spin implements the instructions with which ranks signal each other through shared
// memory: release stores, acquire loads, polling, and messages of one cache line.
//
// The other side is usually another process, which the Go memory model does not cover, so
// correctness depends on the processor. On amd64, stores become visible and loads are performed in
// program order, so a plain MOV suffices, and Go's atomic stores would be several times slower. The
// compiler does not tear, drop or move accesses in assembly.
//
// A MOV does not order a store before a later load. An algorithm that needs this order, such as
// Dekker's, must use sync/atomic. A release store does not order streaming stores.
//
// Publish and Publish64 are plain Go stores within one process. In the code that we have examined,
// the compiler keeps them in order, but Go does not guarantee that.
//
// On other processors and under the race detector, which does not see assembly, all functions use
// sync/atomic.
//
// Go cannot preempt a call into assembly, so a caller that polls for more than a few dozen
// microseconds must call Until64 in a loop.
package spin
