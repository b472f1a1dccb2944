// Package memory manages the memory of a rank's GPU: arenas and segments, the use counts that
// keep arenas and segments alive for graphs of other libraries, and the memory that ranks share.
//
// # Arenas and segments
//
// An Arena consists of two reserved address ranges of the same size. A Segment is a physical
// allocation that is mapped as a whole into both ranges, at the same offset. Windows are registered
// only over the first mapping. Callers use addresses of the first mapping, which Memory.SecondAddress
// translates to the second.
//
// An arena is open from Memory.NewArena until Arena.Close, and a segment is mapped from Arena.Map
// until Segment.Unmap. Neither can be reopened. Memory.mu guards the lists of open arenas and
// mapped segments. Segment.mu guards whether a segment is unmapped. Callers unmap an arena's
// segments before they close the arena.
//
// When an arena is closed or a segment is unmapped, it is freed immediately unless a hold uses it
// (see below). In that case it is freed when the last such hold ends. Memory that a kernel may
// still use is freed even later (gpu.GPU.FreeWhenIdle). If an arena has been kept (Arena.Keep),
// or if it is in use when it is closed, it retains the GPU's context until its addresses are
// freed.
//
// # Use counts and holds
//
// A UseCount counts the users of an object. Users are holds and other objects: a window uses its
// segment, and a segment uses its arena, until the user is freed. Code that frees an object first
// calls UseCounts.DeferUntilUnused. If the object is in use, its free function is deferred until
// the last user is gone, and then runs in a goroutine.
//
// A Hold keeps the objects that a graph of another library uses. It begins with the first call in
// the graph's capture and ends when the graph and its clones have been destroyed and all launches
// have completed. CUDA reports that end by calling a destructor on one of its threads. CUDA calls
// are forbidden there, so the destructor only decrements counts. If the driver does not support
// such destructors, the hold ends when the device is closed (UseCounts.EndHolds). One lock guards
// both the holds of a group (Holds.Any) and the counts of the objects that they use. No object
// can therefore be deferred to the end of a hold that has already ended.
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
