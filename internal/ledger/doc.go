// Package ledger records the placement events of a pool, with a rolling digest (hash). Two ranks
// have placed everything identically if their ledgers hold the same events. Different histories
// have the same 64-bit digest with a probability of about 2^-64, but the digest does not protect
// against attackers.
//
// A ledger keeps its last events in a ring, and digests of older events at checkpoints. When their
// table is full, their stride doubles. Strides are powers of two, so ranks at different positions
// have checkpoints in common.
//
// No type of this package is safe for concurrent use.
package ledger
