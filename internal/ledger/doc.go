// Package ledger records the sequence of placement events in a pool, together with a rolling
// digest.
//
// A [Ledger] absorbs an [event.Event] for each decision that places a block or a segment. Two ranks
// have placed everything the same way if and only if their ledgers hold the same events, which a
// 64-bit digest shows. Histories that differ by mistake have the same digest with a probability of
// about 2^-64. The digest does not protect against attackers.
//
// A ledger keeps its last events exactly, in a ring. Of the older history, it keeps only the
// digests at checkpoints. When the table of checkpoints is full, their stride doubles. Strides are
// powers of two, so that ranks at different positions have checkpoints in common.
//
// Nothing in this package is safe for concurrent use.
package ledger
