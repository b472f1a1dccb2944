// Package binding implements libsymmem.so without the C: one rank of symmem in a process where
// another library, usually PyTorch, owns the tensors, the streams and the caching.
//
// PyTorch's caching allocator asks for segments of 2 MiB, 20 MiB and more, and gives tensors parts
// of them. Here such a segment is a block of a symmem pool, so hundreds of them share a few
// windows, and their addresses ascend alike on all ranks: PyTorch's own tie-break between free
// blocks, by address, then decides alike, too.
//
// # Frees are put in order
//
// PyTorch gives segments back in the order of stream handles and addresses, which differ between
// ranks. A buffer that is freed is therefore retired: calls do not find it by its address any more,
// but it stays allocated, in a list. The list goes back to the pool, ordered by place, at the next
// event that ranks have in common: an allocation, a reservation, a registration, a comparison or a
// note.
//
// # Tensors
//
// A call names tensors by their addresses. symmem.Interop.Memory finds their buffers, which from
// there on take the same way as in a Go program: the call checks them and registers what is new.
//
// # Words
//
// What callers ask all the time they read without a call: words in memory that this package
// changes, see Words.
//
// # States
//
// A Library is closed, open (a rank of a job), or open alone (a rank of its own job, for callers
// that bring communicators and nothing else). Everything in it is safe for concurrent use; no lock
// is held while a rank waits for another.
//
// Lock order: Library.opening, rank.mu, pool.mu.
package binding
