// Package spin implements the few instructions with which ranks signal each other through shared
// memory: release stores, acquire loads, polling, and messages of one cache line.
//
// # Memory model
//
// The other side is usually another process. The Go memory model does not cover other
// processes, so correctness depends on the guarantees of the processor. On amd64 (total store
// order), stores become visible in program order and loads are performed in program order, so a
// plain MOV is a release store or an acquire load. On amd64, the functions are written in
// assembly. Calls into assembly are opaque to the compiler, which therefore does not tear, drop
// or move the accesses. Go's atomic store is an XCHG. It costs several times as much, because
// it also drains the store buffer, which a release store need not do. A MOV does not order a
// store before a later load. An algorithm that needs this order (Dekker's, or "announce the
// sleep, then check again") must therefore use sync/atomic.
//
// Publish and Publish64 are plain Go stores for use between goroutines of one process. The
// compiler inlines them. In the code that we have examined, it keeps them in order with the
// stores and calls around them, but Go does not guarantee that. Under the race detector, they
// are atomic stores.
//
// A release store does not order streaming stores, so package reduce fences these.
//
// On other processors, every function uses sync/atomic, which is sequentially consistent and
// thus at least as strong.
//
// The race detector does not see assembly. It would report a race between two goroutines if
// only this package orders their accesses. Tests under the race detector therefore synchronize
// through sync/atomic or channels, or access the data only from assembly or other processes.
//
// No function in this package blocks in the kernel. The Go scheduler cannot preempt a call into
// assembly, so call Until64 in a loop to poll for more than a few dozen microseconds.
package spin
