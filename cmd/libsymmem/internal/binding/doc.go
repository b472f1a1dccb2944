// Package binding implements libsymmem.so, except for its C code. It runs symmem's ranks in a
// process whose tensors, streams and caching allocator belong to another library, usually PyTorch.
//
// PyTorch's caching allocator requests memory in pieces of at least 2 MiB, and divides them among
// tensors. Each piece is a block of a symmem pool. PyTorch compares addresses to choose between
// free blocks of the same size, so the addresses of blocks ascend in the same order on all ranks.
//
// # Order of frees
//
// PyTorch frees memory in an order that differs between ranks. Free therefore only retires a
// buffer: calls no longer find it by its address, but it stays allocated. The next event that is
// the same on all ranks, such as an allocation, frees the retired buffers in order of offset.
//
// # Worlds
//
// A process can be a rank of several worlds at once, each with its own ranks, groups and pools.
// Handles and pool numbers are unique in the process.
//
// # Concurrency
//
// All methods are safe for concurrent use. No lock is held while a rank waits for another.
//
// Lock order: Library.openMu, then lastUse.mu, then the tables (rankList.mu, table.mu,
// groupTable.mu, poolTable.mu; one at a time), then pool.mu.
package binding
