// Package ledger records the sequence of placement events of a pool with a rolling digest.
//
// An [event.Event] describes each decision that places a block or a segment. A [Ledger] absorbs
// events in the order in which the pool decided them. Two ranks have placed everything equally if
// and only if their ledgers hold the same events. A 64-bit digest shows whether they do, so an
// agreement exchanges only a few words, however long the history is.
//
// Positions count from zero. The event at position p is preceded by p events, and DigestAt(p) is
// the digest of these p events, so DigestAt(0) is the digest of the empty history.
//
// # Why 64 bits are enough
//
// The digest protects against mistakes, not against malice: it does not resist an attacker who
// searches for two histories with the same digest. Histories that differ by accident collide with a
// probability of about 2^-64 per comparison. A cluster that agrees a thousand times a second for a
// year makes 3e10 comparisons, nearly all of equal histories; even if each compared two different
// histories, the probability of a collision would be below 2e-9.
//
// # Memory
//
// A ledger keeps its last events exactly, in a ring, and the digests of older positions at
// checkpoints whose stride doubles whenever their table is full. Memory is thus limited, and the
// distance between checkpoints stays within 1/512 of the whole history. Strides are powers of two,
// so ranks at different positions have checkpoints in common.
//
// Nothing in this package is safe for concurrent use: the owner of the pool guards its ledger.
package ledger
