// Package memory manages the memory of a rank's GPU: arenas and segments, the use counts that keep
// them alive for graphs of other libraries, and the memory that ranks share.
//
// # Arenas and segments
//
// An Arena is two reserved address ranges of the same size. A Segment is one physical allocation,
// mapped whole into both at the same offset. Windows are registered over the first mapping only,
// and callers hold addresses of the first; Memory.AliasOf returns those of the second.
//
// An arena is open from Memory.NewArena until Arena.Close, a segment mapped from Arena.Map until
// Segment.Unmap; neither can be reopened. Memory.mu guards which arenas are open and which segments
// are known, Segment.mu whether a segment is unmapped. Callers unmap the segments of an arena
// before they close it.
//
// A closed arena or an unmapped segment is freed at once, unless a hold uses it (see below): then
// it is freed when the last hold ends. If a kernel may still use it, it is freed later
// (gpu.GPU.FreeWhenIdle). An arena that was kept (Arena.Keep), or is in use when it is closed, retains
// the GPU's context until its addresses are freed.
//
// # Use counts and holds
//
// A UseCount counts the users of an object: holds, and objects inside it that are still to be
// freed, such as a window in its segment and a segment in its arena. Code that frees the object
// first calls UseCounts.DeferUntilUnused: if the object is in use, the free is deferred to a
// goroutine that runs after the last user is gone. A Hold keeps what a graph of another library
// uses, from the first call in its capture until the graph, its clones and its launches are gone.
// The destructor that reports this runs on a CUDA thread, so it only decrements counts. If the
// driver does not report it, the hold ends with the device (UseCounts.End). One lock guards both
// whether a group is held (Holds.Any) and the counts of the objects it holds, so a free is never
// deferred after the hold has ended.
//
// # Shared memory
//
// Ranks of one machine share memory by file descriptors, which they send over the private socket of
// package control/shm. Ranks in different containers, or on different machines of an NVLink fabric,
// exchange fabric handles over the control plane instead. A mapping stays valid when the rank that
// has exported the memory exits.
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
