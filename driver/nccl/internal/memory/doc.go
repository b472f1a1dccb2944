// Package memory is the memory of a rank's GPU: arenas and segments, what graphs of other libraries
// keep of them, and what ranks share with each other.
//
// # Arenas and segments
//
// An Arena is two reserved ranges of addresses of the same size. A Segment is one physical
// allocation that is mapped whole into both, at the same offset. Windows are registered over the
// first mapping only, and callers hold addresses of the first; Memory.AliasOf gives those of the
// second.
//
// An arena is open from Memory.NewArena on and then closed (Arena.Close), a segment mapped from
// Arena.Map on and then unmapped (Segment.Unmap); neither comes back. Memory.mu guards which arenas
// are open and which segments are known, Segment.mu whether a segment is unmapped. Callers unmap
// the segments of an arena before they close it.
//
// What is closed or unmapped is given back at once, unless a hold uses it (below): then when the
// last one ends. If a kernel may still use it by then it is given back later (gpu.GPU.GiveBack). An
// arena that was kept (Arena.Keep), or that is in use when it is closed, keeps the GPU's context
// until its addresses are given back.
//
// # Use counts and holds
//
// A UseCount counts who uses a thing: holds, and what lies in it and is still to be given back, as
// a window in its segment and a segment in its arena. What gives the thing back asks first
// (UseCounts.DeferUntilUnused): while it is used that is deferred, and done by a goroutine once the
// last user has gone. A Hold is what a graph of another library has of a group, from the first call
// that is put into its capture until nothing is left of the graph, its clones and launches. The
// destructor that reports that runs on a thread of CUDA's, so it drops counts alone. Where the
// driver does not report it the hold ends with the device (UseCounts.End). Whether a group is held
// (Holds.Any) and the counts of what it holds change under one lock, so what is not held any more
// is not deferred any more.
//
// # Shared memory
//
// Ranks of one machine give each other memory by descriptors, which go over the private socket of
// package control/shm. Where those do not reach, in another container or on another machine of an
// NVLink fabric, they are fabric handles: bytes that go over the plane. Who has mapped memory keeps
// it when the rank that gave it ends.
//
// # Lock order
//
// The order is that of all packages of the backend: see package nccl. No lock is held while another
// rank is waited for.
//
//	Scratch.mu
//	Segment.mu
//	Memory.mu
//	UseCounts.mu
package memory
