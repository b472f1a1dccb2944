package trace

import "errors"

// ErrFormat is wrapped by errors about the contents of a trace.
var ErrFormat = errors.New("unreadable trace")

// The layout of a trace's header. Numbers are little-endian.
const (
	magic       = "SYMTRACE"
	version     = 2
	headerBytes = 4096

	offsetVersion        = 8   // uint32
	offsetRecordBytes    = 12  // uint32: size of a record in bytes
	offsetRank           = 16  // uint32
	offsetSize           = 20  // uint32
	offsetProcess        = 24  // uint32
	offsetCapacity       = 32  // uint64: number of records, a power of two
	offsetTextSpaceBegin = 40  // uint64: offset of the text space
	offsetTextSpaceBytes = 48  // uint64: size of the text space in bytes
	offsetStart          = 56  // int64: UTC in nanoseconds since 1970
	offsetHost           = 64  // name of the machine, 64 bytes, padded with zeros
	offsetClaimedCount   = 128 // uint64: number of records claimed so far
	offsetUsedTextBytes  = 192 // uint64: bytes of texts written so far
	offsetLostTexts      = 200 // uint64: number of texts that did not fit
)

// maxHostBytes is Linux's limit.
const maxHostBytes = 64

// lostTextNumber stands for texts that did not fit into the file.
const lostTextNumber = 1<<32 - 1

// unknownSourceNumber stands for sources whose number does not fit into 16 bits.
const unknownSourceNumber = 1<<16 - 1

// Masks of the lowest bits of a word.
const (
	mask16 = 1<<16 - 1
	mask32 = 1<<32 - 1
)

// record consists of four little-endian words of 64 bits. An event takes one record, or two if its
// values need more bits. The head is written last, and shows that the record is complete.
type record struct {
	head uint64
	payload
}

// payload holds the fields in this table, with their sizes in bits, from the lowest bits. For
// example, "offset/256 32" is the offset divided by 256, in 32 bits.
//
//	                  a                        b                  c
//	event of a pool   number 32, stream 16,    offset/256 32,     size-requested 32,
//	                  segment+1 16             size/256 32        site 32
//	its second record the bits that the first record lacks, and the name in place of the site
//	event of a group  number 32, stream 32     time 64            text 32, site 32
//	its second record number>>32 32, name 32   value or digest    collectives or bytes
type payload struct{ a, b, c uint64 }

const (
	recordBytes         = 32
	recordsPerCacheLine = 2 // of 64 bytes
)

// A head contains, from the lowest bits: the low 32 bits of the record's number (from 1), the
// number of the text that names the event's source (its pool or group), the event's kind, two
// flags, and an age.
//
// A Source claims batchRecords records at once, because an atomic operation per event would be
// slow. It first writes heads without a kind. The age of a record is the number of records claimed
// between its claim and its writing. Readers sort events by the sum of number and age.
const (
	sourceShift   = 32      // 16 bits
	kindShift     = 48      // 8 bits
	hasSecondFlag = 1 << 56 // a second record follows
	isSecondFlag  = 1 << 57 // this is a second record
	ageShift      = 58      // 6 bits

	batchRecords = 16
	maxAge       = 63 // the largest number of 6 bits
	// minRecords ensures that a batch is complete before its records are overwritten: a Source
	// drops a batch whose age exceeds maxAge.
	minRecords = 2 * (maxAge + 1)
)

// placementFields describes a pool's event. stream and segment have at most 32 bits. segment is the
// segment's number plus 1, or 0 without a segment. unrequested is size minus requested size.
type placementFields struct {
	number, stream, segment, offset, size, unrequested uint64
}

// pack returns the payload of the first record. It requires the number of the call site's text in
// the upper half of siteBits.
func (p *placementFields) pack(siteBits uint64) payload {
	return payload{
		a: p.number&mask32 | p.stream&mask16<<32 | p.segment&mask16<<48,
		b: p.offset>>8&mask32 | p.size>>8<<32, // the shift drops the high bits of size
		c: p.unrequested&mask32 | siteBits,
	}
}

// packSecond returns the payload of the second record. name is the number of a text.
func (p *placementFields) packSecond(name uint32) payload {
	return payload{
		a: p.number>>32 | p.stream>>16<<32 | p.segment>>16<<48,
		b: packOuterBits(p.offset) | packOuterBits(p.size)<<32,
		c: p.unrequested>>32 | uint64(name)<<32,
	}
}

// packOuterBits returns the 32 bits of v outside bits 8 to 39, which the first record holds.
func packOuterBits(v uint64) uint64 { return v&0xff | v>>40<<8 }

// unpackPlacement reverses pack and packSecond. Without a second record, rest must be zero.
func unpackPlacement(first, rest payload) placementFields {
	return placementFields{
		number:      first.a&mask32 | rest.a<<32,
		stream:      first.a>>32&mask16 | rest.a>>32&mask16<<16,
		segment:     first.a>>48 | rest.a>>48<<16,
		offset:      combineBits(first.b&mask32, rest.b&mask32),
		size:        combineBits(first.b>>32, rest.b>>32),
		unrequested: first.c&mask32 | rest.c<<32,
	}
}

// combineBits reverses packOuterBits: outer is its result, and middle holds bits 8 to 39.
func combineBits(middle, outer uint64) uint64 { return middle<<8 | outer&0xff | outer>>8<<40 }
