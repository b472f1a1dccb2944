// Package spin implements the few instructions with which ranks signal each other through shared
// memory: release stores, acquire loads, waiting by polling, and a message of one cache line.
//
// # Memory model
//
// The other side is usually another process, which the Go memory model does not cover, so
// correctness depends on the guarantees of the processor. On amd64 (total store order) stores
// become visible in program order and loads are performed in program order; a plain MOV is
// therefore a release store and an acquire load. The functions are assembly on amd64 so that the
// compiler can neither tear, drop nor move them: a call to assembly is opaque to it, so every
// access that precedes the call in the source is done before it, and every one that follows after
// it. Go's atomic store is an XCHG, which also drains the store buffer; a release does not need
// that, and it costs several times as much. A MOV does not order a store before a later load: an
// algorithm that needs this (Dekker's, or "announce the sleep, then check again") must use
// sync/atomic.
//
// Publish and Publish64 are plain stores in Go, for goroutines of one process: the compiler inlines
// them, and keeps them in the order of the stores and calls around them (observed, not guaranteed;
// under the race detector they are atomic stores).
//
// Streamed stores are not ordered by a release store; package reduce fences them.
//
// On other processors everything is sync/atomic, which is sequentially consistent and thus at least
// as strong.
//
// The race detector does not see assembly: it reports a race between two goroutines that only this
// package orders. Tests under the detector synchronize through sync/atomic or channels instead, or
// access such data only from assembly or other processes.
//
// Nothing here blocks in the kernel, and a call cannot be preempted by the Go scheduler: polling
// for more than some tens of microseconds requires a loop around Until64.
package spin
