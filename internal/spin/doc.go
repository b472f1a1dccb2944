// Package spin implements the few instructions with which ranks signal each other through shared
// memory: release stores, acquire loads, polling, and messages of one cache line.
//
// # Memory model
//
// The other side is usually another process, which the Go memory model does not cover, so
// correctness depends on the guarantees of the processor. On amd64 (total store order), stores
// become visible in program order and loads are performed in program order, so a plain MOV is a
// release store or an acquire load. The functions are written in assembly on amd64, because calls
// into assembly are opaque to the compiler, which therefore does not tear, drop or move the
// accesses. Go's atomic store is an XCHG, which costs several times as much, because it also drains
// the store buffer, as a release store need not. A MOV does not order a store before a later load,
// so an algorithm that needs this order (Dekker's, or "announce the sleep, then check again") must
// use sync/atomic.
//
// Publish and Publish64 are plain Go stores for use between goroutines of one process. The compiler
// inlines them. We have observed that it keeps them in order with the stores and calls around them,
// but Go does not guarantee that. Under the race detector they are atomic stores.
//
// A release store does not order streaming stores, so package reduce fences these.
//
// On other processors every function uses sync/atomic, which is sequentially consistent and thus at
// least as strong.
//
// Because the race detector does not see assembly, it would report a race between two goroutines
// that only this package orders. Tests under the race detector therefore synchronize through
// sync/atomic or channels, or access the data only from assembly or other processes.
//
// No function in this package blocks in the kernel. Because the Go scheduler cannot preempt a call
// into assembly, call Until64 in a loop to poll for more than a few dozen microseconds.
package spin
