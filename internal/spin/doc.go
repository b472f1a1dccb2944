// Package spin implements the instructions with which ranks signal each other through shared
// memory: release stores, acquire loads, polling, and messages of one cache line.
//
// The other side is usually another process, which the Go memory model does not cover. On amd64,
// stores become visible and loads are performed in program order, so a plain MOV suffices, and the
// compiler does not tear, drop or move accesses in assembly.
//
// A MOV does not order a store before a later load. Algorithms that need this order must use
// sync/atomic. A release store does not order streaming stores.
//
// On other processors and under the race detector, all functions use sync/atomic.
//
// Go cannot preempt a call into assembly, so long polls must call Until64 in a loop.
package spin
