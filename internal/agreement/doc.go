// Package agreement compares the ledgers of a group's ranks, which are the histories of their
// pools, and finds the first event at which they differ.
//
// An agreement is a sequence of rounds, which [Run] performs. In each round, every rank contributes
// a payload and receives the payloads of all ranks (see [Exchange]). [Merge] combines them into a
// [Summary], and [Machine.Step] returns the payload for the next round or the [Outcome].
//
//	vote     position, digest, agreed prefix and pending segments of each ledger; the tag
//	  |
//	  +-- all identical --------------------------------------------> agreed
//	  +-- different operation or different pools -------------------> divergence
//	  |
//	probe    digests at up to 15 positions of each ledger that may differ; repeated
//	  |
//	  +-- same digest at the common position (Prefix) --------------> agreed, unless calls differ
//	  |
//	events   the event of each rank at the first differing position --> divergence
//
// If all ledgers are identical, an agreement takes one round. Otherwise it takes at most 1 +
// ceil(log16(n+1)) + 1 rounds for a history of n events.
//
// Ranks that receive the same payloads reach the same Outcome with the same text. An invalid
// payload causes an error that wraps [ErrProtocol], never a panic.
package agreement
