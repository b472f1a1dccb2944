// Package spin implements the few instructions with which ranks signal each other through shared
// memory: release stores, acquire loads, polling, and messages of one cache line.
//
// # Memory model
//
// The other side is usually another process, which the Go memory model does not cover. Correctness
// therefore depends on the processor. On amd64, stores become visible in program order and loads
// are performed in program order, so a plain MOV is a release store or an acquire load. Go's atomic
// store is an XCHG, which costs several times as much. The functions are written in assembly,
// in which the compiler does not tear, drop or move accesses.
//
// A MOV does not order a store before a later load. An algorithm that needs this order, such as
// Dekker's, must use sync/atomic. A release store does not order streaming stores.
//
// Publish and Publish64 are plain Go stores for use between goroutines of one process. In the code
// that we have examined, the compiler keeps them in order with the stores and calls around them,
// but Go does not guarantee that.
//
// On other processors and under the race detector, every function uses sync/atomic. The race
// detector does not see assembly.
//
// The Go scheduler cannot preempt a call into assembly. A caller that polls for more than a few
// dozen microseconds must therefore call Until64 in a loop.
package spin
