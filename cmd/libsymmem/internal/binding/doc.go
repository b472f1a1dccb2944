// Package binding implements libsymmem.so, except for its C code. It runs symmem's ranks in a
// process whose tensors, streams and caching allocator belong to another library, usually PyTorch.
//
// PyTorch's caching allocator requests segments of 2 MiB, 20 MiB and more, and divides them among
// tensors. Here, each of these segments is a block of a symmem pool, and hundreds of blocks share a
// few windows. The blocks' addresses ascend in the same order on all ranks, so that PyTorch, which
// compares addresses to choose between equally good free blocks, makes the same choice everywhere.
//
// # Order of frees
//
// PyTorch returns segments in the order of stream handles and addresses, which differs between
// ranks. Free therefore only retires a buffer: calls no longer find it by its address, but it stays
// allocated. The next event that is the same on all ranks (an allocation, a reservation, a
// registration, a comparison or a note) frees the retired buffers in order of segment and offset.
//
// # Tensors
//
// Callers identify tensors by address, and symmem.Interop.Memory finds the buffers that contain
// them. After that, a call is checked, registered and launched as in a Go program.
//
// # Words
//
// This package maintains counters that callers read from memory to detect changes without making a
// call; see Words.
//
// # Worlds
//
// A process can be a rank of several worlds at once, each with its own ranks, store, timeout,
// groups and pools. Open opens the main world; OpenWorld opens others. Handles and pool numbers are
// unique in the process, so that most functions need no world as an argument.
//
// # States
//
// The main world is closed, open as a rank of a job, or open alone, as a job of one rank. The last
// state is for callers that communicate only through another library's communicators. All methods
// are safe for concurrent use. No lock is held while a rank waits for another.
//
// Lock order: Library.opening, then lastUse.mu, then the tables (rankList.mu, table.mu,
// groupTable.mu, poolTable.mu; one at a time), then pool.mu.
package binding
