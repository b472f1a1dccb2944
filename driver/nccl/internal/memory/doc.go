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
// when the last hold ends. If a kernel may still use it, it is freed later (gpu.GPU.GiveBack). An
// arena that was kept (Arena.Keep), or is in use when it is closed, keeps the GPU's context alive
// until its addresses are freed.
//
// # Use counts and holds
//
// A UseCount counts the users of an object: holds, and objects inside it that are still to be
// freed, as a window in its segment and a segment in its arena. Code that frees the object first
// calls UseCounts.DeferUntilUnused: if the object is in use, the free is deferred to a goroutine
// that runs when the last user has gone. A Hold stands for the use of a group by a graph of another
// library, from the first call in its capture until the graph, its clones and its launches are
// gone. The destructor that reports this runs on a CUDA thread, so it only decrements counts. If
// the driver does not report it, the hold ends with the device (UseCounts.End). One lock guards
// both whether a group is held (Holds.Any) and the counts of the objects it holds, so a free is
// never deferred after the hold has ended.
//
// # Shared memory
//
// Ranks of one machine share memory by descriptors, which they send over the private socket of
// package control/shm. Where those do not reach, in another container or on another machine of an
// NVLink fabric, they exchange fabric handles over the control plane. A rank that has mapped memory
// keeps it when the rank that shared it ends.
//
// # Lock order
//
// Package nccl documents the order of all locks of the backend. No lock is held while another rank
// is waited for.
//
//	Scratch.mu
//	Segment.mu
//	Memory.mu
//	UseCounts.mu
package memory
