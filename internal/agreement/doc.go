// Package agreement compares the ledgers of a group's ranks, which are the histories of their
// pools, and finds the first event at which they differ.
//
// [Run] performs an agreement in rounds. In each round, every rank sends a payload to all ranks
// (see [Exchange]). [Merge] combines the payloads, and [Machine.Step] returns the next payload or
// the [Outcome].
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
// If all ledgers are identical, an agreement takes one round. Otherwise, it takes at most 1 +
// ceil(log16(n+1)) + 1 rounds for n events.
//
// Ranks that receive the same payloads reach the same Outcome.
package agreement
