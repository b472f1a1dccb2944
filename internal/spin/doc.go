// Package spin implements the few instructions with which ranks signal each other through shared
// memory: release stores, acquire loads, waiting by polling, and a message of one cache line.
//
// # Memory model
//
// The other side is usually another process, which the Go memory model does not cover, so
// correctness depends on the guarantees of the processor. On amd64 (total store order), stores
// become visible in program order and loads are performed in program order, so a plain MOV is a
// release store or an acquire load. The functions are assembly on amd64. A call to assembly is
// opaque to the compiler, which therefore does not tear, drop or move the accesses. Go's atomic
// store is an XCHG, which also drains the store buffer. A release store does not need that, and an
// XCHG costs several times as much. A MOV does not order a store before a later load. An algorithm
// that needs this order (Dekker's, or "announce the sleep, then check again") must use sync/atomic.
//
// Publish and Publish64 are plain stores in Go, for goroutines of one process. The compiler inlines
// them. We have observed that it keeps them in order with the stores and calls around them, but Go
// does not guarantee it. Under the race detector they are atomic stores.
//
// A release store does not order streamed stores, so package reduce fences them.
//
// On other processors every function uses sync/atomic, which is sequentially consistent and thus at
// least as strong.
//
// The race detector does not see assembly. It would report a race between two goroutines that only
// this package orders. Tests under the race detector therefore synchronize through sync/atomic or
// channels, or access the data only from assembly or other processes.
//
// No function of this package blocks in the kernel. The Go scheduler cannot preempt a call into
// assembly. To poll for more than some tens of microseconds, call Until64 in a loop.
package spin
