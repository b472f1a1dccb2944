package trace

import "errors"

// ErrFormat is wrapped by errors about the contents of a trace.
var ErrFormat = errors.New("unreadable trace")

// A trace is a file with the events of one rank. It has three parts: a header, a ring of records,
// and a text space. All numbers are little-endian.
//
//   - An event takes one record or two adjacent ones. Most events of pools take one, because their
//     values need few bits. An event of a group always takes two.
//   - Records are numbered from 1. If the ring has a capacity of 128 records, record 130 takes the
//     place of record 2.
//   - The pools and groups of the rank are the sources of events.
//   - Strings, such as the call site "a.go:1", are texts. The text space has each text once, and a
//     record has the number of the text. Number 0 is the empty text.

// Offsets in the header.
const (
	magic       = "SYMTRACE" // at offset 0
	version     = 2
	headerBytes = 4096

	offsetVersion        = 8   // uint32
	offsetRecordBytes    = 12  // uint32: size of a record in bytes
	offsetRank           = 16  // uint32
	offsetSize           = 20  // uint32: number of ranks
	offsetProcess        = 24  // uint32: process id
	offsetCapacity       = 32  // uint64: number of records in the ring, a power of two
	offsetTextSpaceBegin = 40  // uint64: offset of the text space in the file
	offsetTextSpaceBytes = 48  // uint64: size of the text space in bytes
	offsetStart          = 56  // int64: UTC in nanoseconds since 1970
	offsetHost           = 64  // name of the machine: maxHostBytes, padded with zeros
	offsetClaimedCount   = 128 // uint64: number of records claimed so far
	offsetUsedTextBytes  = 192 // uint64: bytes of texts written so far
	offsetLostTexts      = 200 // uint64: number of texts that did not fit
)

// maxHostBytes is the longest name that Linux permits.
const maxHostBytes = 64

// Numbers that do not identify a text.
const (
	lostTextNumber      = 1<<32 - 1 // the text did not fit into the text space
	unknownSourceNumber = 1<<16 - 1 // the number of a source's text did not fit into 16 bits
)

// record is a record in the file. The head is written last.
type record struct {
	head uint64
	payload
}

const (
	recordBytes         = 32
	recordsPerCacheLine = 2 // of 64 bytes
)

// A head has these fields:
//
//	bits 0 to 31    the low half of the record's number, or a different value during a write
//	bits 32 to 47   the number of the text that names the source
//	bits 48 to 55   the kind of the event, or 0 in a record that has been claimed but not used
//	bit 56          set in the first of two records
//	bit 57          set in the second of two records
//	bits 58 to 63   the age
const (
	sourceShift   = 32
	kindShift     = 48
	hasSecondFlag = 1 << 56
	isSecondFlag  = 1 << 57
	ageShift      = 58
)

// The sources share the ring, so a Source claims records before it writes them. For events that
// take one record, it claims a batch of 16 records, because an atomic operation per event would be
// slow. Suppose that pool A claims the records 1 to 16, and that pool B then claims 17 to 32:
//
//	A writes record 1 before B's claim    16 are claimed, so the age is 16-1 = 15
//	B writes record 17                    32 are claimed, so the age is 32-17 = 15
//	A writes record 2                     32 are claimed, so the age is 32-2 = 30
//
// The sum of number and age is the number of claimed records. Readers sort by this sum, and then by
// the number.
const (
	batchRecords = 16
	maxAge       = 63 // the largest number of 6 bits; a Source drops the rest of an older batch
	// minRecords is the smallest capacity of the ring. With it, a record whose age is at most maxAge
	// is still in the ring.
	minRecords = 2 * (maxAge + 1)
)

// payload holds the words of a record after the head. This table lists the fields of each word from
// the lowest bits, with their sizes in bits. The first row shows that bits 0 to 31 of word a hold
// an event's number, and that bits 32 to 47 hold its stream.
//
//	                  a                        b                  c
//	event of a pool   number 32, stream 16,    offset/256 32,     size-requested 32,
//	                  segment+1 16             size/256 32        site 32
//	its second record the bits that the first record lacks, and the name in place of the site
//	event of a group  number 32, stream 32     time 64            text 32, site 32
//	its second record number>>32 32, name 32   value or digest    collectives or bytes
//
// The site, the name and the text are numbers of texts.
type payload struct{ a, b, c uint64 }

// Masks of the lowest bits of a word.
const (
	mask16 = 1<<16 - 1
	mask32 = 1<<32 - 1
)

// placementFields holds the values of a pool's event. The first record has only these bits of them:
//
//	number, unrequested   bits 0 to 31
//	stream, segment       bits 0 to 15
//	offset, size          bits 8 to 39
//
// If all other bits are 0 and the event has no name, there is no second record.
type placementFields struct {
	number  uint64
	stream  uint64 // has at most 32 bits
	segment uint64 // the segment's number plus 1, or 0 without a segment; has at most 32 bits
	offset  uint64
	size    uint64
	// unrequested is the size minus the requested size.
	unrequested uint64
}

// pack returns the payload of the first record. siteBits has the call site in its upper half.
func (p *placementFields) pack(siteBits uint64) payload {
	return payload{
		a: p.number&mask32 | p.stream&mask16<<32 | p.segment&mask16<<48,
		b: p.offset>>8&mask32 | p.size>>8<<32, // the left shift drops the size's bits from 40
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

// packOuterBits packs bits 0 to 7 and 40 to 63 of v into 32 bits.
func packOuterBits(v uint64) uint64 { return v&0xff | v>>40<<8 }

// unpackPlacement reverses pack and packSecond. If there is no second record, second must be zero.
func unpackPlacement(first, second payload) placementFields {
	return placementFields{
		number:      first.a&mask32 | second.a<<32,
		stream:      first.a>>32&mask16 | second.a>>32&mask16<<16,
		segment:     first.a>>48 | second.a>>48<<16,
		offset:      combineBits(first.b&mask32, second.b&mask32),
		size:        combineBits(first.b>>32, second.b>>32),
		unrequested: first.c&mask32 | second.c<<32,
	}
}

// combineBits returns the value with bits 8 to 39 from middle. outer is a result of packOuterBits.
func combineBits(middle, outer uint64) uint64 { return middle<<8 | outer&0xff | outer>>8<<40 }
