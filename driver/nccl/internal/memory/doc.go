// Package memory manages the memory of a rank's GPU: arenas and segments, the use counts that keep
// them alive for graphs of other libraries, and the memory that ranks share.
//
// # Arenas and segments
//
// An Arena consists of two reserved address ranges of the same size. A Segment is a physical
// allocation that is mapped as a whole into both ranges, at the same offset. Windows are registered
// only over the first mapping. Callers use addresses of the first mapping, which Memory.AliasOf
// translates to the second.
//
// An arena is open from Memory.NewArena until Arena.Close, and a segment is mapped from Arena.Map
// until Segment.Unmap. Neither can be reopened. Memory.mu guards the lists of open arenas and
// mapped segments. Segment.mu guards whether a segment is unmapped. Callers unmap an arena's
// segments before they close the arena.
//
// A closed arena or an unmapped segment is freed immediately, or when the last hold that uses it
// ends (see below). Memory that a kernel may still use is freed later (gpu.GPU.FreeWhenIdle). An
// arena that has been kept (Arena.Keep), or is in use when it is closed, retains the GPU's context
// until its addresses are freed.
//
// # Use counts and holds
//
// A UseCount counts the users of an object, which are holds and objects that the object contains:
// until it is freed, a window uses its segment, and a segment its arena. Code that frees an object
// first calls UseCounts.DeferUntilUnused. If the object is in use, its free function is deferred
// until the last user is gone, and then runs in a goroutine.
//
// A Hold keeps the objects that a graph of another library uses, from the first call in the graph's
// capture until the graph and its clones are destroyed and all launches have completed. CUDA
// reports this through a destructor on a CUDA thread, which therefore only decrements counts. If
// the driver does not support such destructors, the hold ends with the device (UseCounts.EndHolds).
// One lock guards both the holds of a group (Holds.Any) and the counts of the objects that they
// use, so that a free is never deferred after the hold has ended.
//
// # Shared memory
//
// Ranks of one machine share memory through file descriptors, which they send over the private
// socket of package control/shm. Ranks in different containers, or on different machines of an
// NVLink fabric, cannot send descriptors, so they exchange fabric handles over the control plane. A
// mapping stays valid after the exporting rank has exited.
//
// # Lock order
//
// Package nccl documents the order of all locks of the backend. No lock is held while waiting for
// another rank.
//
//	Scratch.mu
//	Segment.mu
//	Memory.mu
//	UseCounts.mu
package memory
