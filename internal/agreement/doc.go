// Package agreement compares the ledgers of a group's ranks and finds the first event at which they
// differ.
//
// An agreement is a sequence of rounds. In a round every rank contributes a payload and reads the
// payloads of all ranks ([Exchange]). [Merge] summarizes them, and every rank advances its
// [Machine] with the summary, which yields the payload of the next round or the [Outcome]. [Run]
// combines these steps.
//
//	vote     position, digest, agreed prefix and pending segments of each ledger; the tag
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
// For a history of n events, an agreement takes at most 1 + ceil(log16(n+1)) + 1 rounds. Equal
// ledgers take one. If a history is no longer kept in full, the outcome contains a range instead of
// a position.
//
// All ranks that got the same payloads reach the same outcome with the same text. Everything that
// comes from a peer is decoded strictly: a payload that is truncated, oversized, of another version
// or inconsistent with the round is an error that wraps [ErrProtocol], and never causes a panic.
//
// The package does no I/O and has no clock. The caller exchanges the payloads, sets the deadline,
// and passes a nil payload for a rank that did not take part.
package agreement
