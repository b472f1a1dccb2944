// Package agreement compares the ledgers of a group's ranks and names the first event at which
// they differ.
//
// An agreement is a sequence of rounds. In a round every rank contributes a payload and reads those
// of all ([Exchange]). [Merge] sums them up, and every rank steps its [Machine] with the summary,
// which yields the payload of the next round or the [Outcome]. [Run] does all of it.
//
//	vote     position, digest, agreed prefix, pending segments of each ledger; what it is for
//	  |
//	  +-- all equal ------------------------------------------------> agreed
//	  +-- different operation or different pools -------------------> divergence
//	  |
//	probe    digests at up to 15 positions of each ledger that may differ; repeated
//	  |
//	  +-- equal at the common position (Prefix) --------------------> agreed, unless calls differ
//	  |
//	events   the event of each rank at the first differing position --> divergence
//
// A history of n events that may differ takes at most 1 + ceil(log16(n+1)) + 1 rounds. Agreed
// ledgers take one. Where a history is no longer kept in full, the outcome gives a range instead of
// a position.
//
// All ranks that got the same payloads reach the same outcome, word for word. Everything that came
// from a peer is decoded strictly: a payload that is truncated, oversized, of another version or at
// odds with the round is an error that wraps [ErrProtocol], and never a panic.
//
// The package is pure: it exchanges nothing itself and has no clock. Whoever does the exchange sets
// the deadline, and stands a nil payload in for a rank that did not come.
package agreement
