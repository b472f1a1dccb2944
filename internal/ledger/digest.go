package ledger

import (
	"math/bits"

	"symmem/event"
)

// Leading bits of the square roots of the first six primes, which keep zero fields from making a
// product zero.
const (
	keyPlace   = 0x6a09e667f3bcc908
	keyOffset  = 0xbb67ae8584caa73b
	keySize    = 0x3c6ef372fe94f82b
	keyRequest = 0xa54ff53a5f1d36f1
	keyDigest  = 0x510e527fade682d1
	keyKind    = 0x9b05688c2b3e6c1f
)

// Empty is the digest of a history without events.
const Empty uint64 = keyDigest

// In multiplyAndFold, every input bit affects every output bit, through carries.
func multiplyAndFold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// Mix adds two words to a digest of other data.
func Mix(digest, a, b uint64) uint64 {
	return multiplyAndFold(digest^multiplyAndFold(a^keyPlace, b^keyOffset), keyDigest)
}

// Only extendDigest depends on the previous digest, so an event adds the latency of only one
// multiplication.
func digestAfter(digest uint64, e *event.Event) uint64 {
	return extendDigest(digest, mixPlace(event.PackStreamSegment(e.Stream, e.Segment), e.Offset),
		mixSizes(e.Size, e.Requested, e.Kind))
}

func extendDigest(digest, place, sizes uint64) uint64 {
	return multiplyAndFold(digest^place, sizes^keyDigest)
}

func mixPlace(streamSegment uint64, offset int64) uint64 {
	return multiplyAndFold(streamSegment^keyPlace, uint64(offset)^keyOffset)
}

func mixSizes(size, requested int64, kind event.Kind) uint64 {
	request := uint64(requested) ^ uint64(kind)*keyKind
	return multiplyAndFold(uint64(size)^keySize, request^keyRequest)
}

// RequestDigest returns a digest (hash) of an event without its place, which an earlier difference
// may have moved.
func RequestDigest(e event.Event) uint64 {
	e.Segment, e.Offset = 0, 0
	return digestAfter(Empty, &e)
}
