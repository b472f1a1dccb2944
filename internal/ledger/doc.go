// Package ledger records the sequence of placement events in a pool, together with a rolling
// digest.
//
// Each decision that places a block or a segment is described by an [event.Event]. A [Ledger]
// absorbs the events in the order in which the pool made the decisions. Two ranks have placed
// everything the same way if and only if their ledgers hold the same events. A 64-bit digest
// shows whether they do, so an agreement exchanges only a few words, however long the history
// is.
//
// Positions count from zero. The event at position p is preceded by p events, and DigestAt(p) is
// the digest of these p events, so DigestAt(0) is the digest of the empty history.
//
// # Why 64 bits are enough
//
// The digest protects against mistakes, but not against an attacker who searches for two
// histories with the same digest. Histories that differ by accident collide with a probability
// of about 2^-64 per comparison. A cluster that agrees a thousand times a second for a year
// makes 3e10 comparisons, nearly all of them between identical histories; even if the histories
// differed each time, the probability of a collision would be below 2e-9.
//
// # Memory
//
// A ledger keeps its last events exactly, in a ring. Of the older history, it keeps only the
// digests at checkpoints. When the table of checkpoints is full, their stride doubles. Memory
// is thus bounded, and the stride stays within 1/512 of the whole history. Strides are powers
// of two, so ranks at different positions have checkpoints in common.
//
// Nothing in this package is safe for concurrent use. The owner of a pool must guard its ledger
// with a lock.
package ledger
