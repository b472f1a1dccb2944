package ledger

import "math/bits"

// Constants with about as many ones as zeros: the leading bits of the fractional parts of the
// square roots of the first six primes. They keep zero fields from meeting zero fields, which a
// product would swallow.
const (
	keyPlace   = 0x6a09e667f3bcc908
	keyOffset  = 0xbb67ae8584caa73b
	keySize    = 0x3c6ef372fe94f82b
	keyRequest = 0xa54ff53a5f1d36f1
	keyRoll    = 0x510e527fade682d1
	keyKind    = 0x9b05688c2b3e6c1f
)

// Empty is the digest of a history without events.
const Empty uint64 = keyRoll

// fold multiplies to 128 bits and folds the halves: every input bit reaches every output bit
// through the carries, for the price of one multiplication.
func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// Mix absorbs two words into digest. It is what the digests of everything that ranks compare
// other than events are made of, such as lists of segments.
func Mix(digest, a, b uint64) uint64 {
	return fold(digest^fold(a^keyPlace, b^keyOffset), keyRoll)
}

// absorb returns the digest after e. The products of place and amount do not depend on the digest,
// so a run of events is bounded by one multiplication each.
func absorb(digest uint64, e *Event) uint64 {
	return roll(digest, place(where(e.Stream, e.Segment), e.Offset),
		amount(e.Size, e.Requested, e.Kind))
}

func roll(digest, place, amount uint64) uint64 {
	return fold(digest^place, amount^keyRoll)
}

func place(where uint64, offset int64) uint64 {
	return fold(where^keyPlace, uint64(offset)^keyOffset)
}

func amount(size, requested int64, kind Kind) uint64 {
	what := uint64(requested) ^ uint64(kind)*keyKind
	return fold(uint64(size)^keySize, what^keyRequest)
}

// RequestDigest covers what an event asks for and leaves out where it was placed, so that a later
// event is recognised although an earlier difference has moved it.
func (e Event) RequestDigest() uint64 {
	e.Segment, e.Offset = 0, 0
	return absorb(Empty, &e)
}
