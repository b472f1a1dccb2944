package trace

import "errors"

// ErrFormat is wrapped by errors about the contents of a trace.
var ErrFormat = errors.New("unreadable trace")

// A trace consists of a header, a ring buffer of records, and a text space. A source (a memory pool
// or a group of ranks) first claims records, and then writes one or two for each event. The text
// space contains numbered strings; a record contains only their numbers.

const (
	magic       = "SYMTRACE" // at offset 0
	version     = 2
	headerBytes = 4096
)

// Offsets in the header. All numbers are little-endian.
const (
	offsetVersion        = 8   // uint32
	offsetRecordBytes    = 12  // uint32: size of a record
	offsetRank           = 16  // uint32
	offsetRankCount      = 20  // uint32
	offsetProcess        = 24  // uint32: process id
	offsetCapacity       = 32  // uint64: number of records in the ring, a power of two
	offsetTextSpaceBegin = 40  // uint64: offset of the text space in the file
	offsetTextSpaceBytes = 48  // uint64: size of the text space
	offsetStart          = 56  // int64: time of the start in nanoseconds since 1970, UTC
	offsetHost           = 64  // name of the machine, padded with zeros to maxHostBytes
	offsetClaimedCount   = 128 // uint64: number of claimed records
	offsetUsedTextBytes  = 192 // uint64: size of the texts written
	offsetLostTexts      = 200 // uint64: number of texts that did not fit
)

const maxHostBytes = 64 // the longest name that Linux permits

// Replacements for text numbers.
const (
	lostTextNumber      = 1<<32 - 1 // the text did not fit into the text space
	unknownSourceNumber = 1<<16 - 1 // the number of the source's name exceeds 16 bits
)

// The head of a record is written last.
type record struct {
	head uint64
	payload
}

const (
	recordBytes         = 32
	recordsPerCacheLine = 2
)

// Fields of a head:
//
//	bits 0 to 31    low half of the record's number, from 1; otherwise, the record is incomplete
//	bits 32 to 47   text number of the source's name
//	bits 48 to 55   kind of the event, or 0 without an event
//	bit 56          set if the event has a second record
//	bit 57          set in a second record
//	bits 58 to 63   age: number of later records that were claimed before this one was written
const (
	sourceShift   = 32
	kindShift     = 48
	hasSecondFlag = 1 << 56
	isSecondFlag  = 1 << 57
	ageShift      = 58
)

// A source claims 16 records with one atomic operation. Until it writes them, other sources may
// claim and write later records. Readers sort records by the sum of number and age, which counts
// the records claimed at the write, and then by number. An example in the order of writes:
//
//	pool A claims records 1 to 16 and writes record 1     age 16-1  = 15, sum 16
//	pool A writes record 2                                age 16-2  = 14, sum 16
//	pool B claims records 17 to 32 and writes record 17   age 32-17 = 15, sum 32
//	pool A writes record 3                                age 32-3  = 29, sum 32
//
// Readers return the records in the order 1, 2, 3, 17.
const (
	batchRecords = 16
	maxAge       = 1<<6 - 1         // a source skips older records, and claims a new batch
	minRecords   = 2 * (maxAge + 1) // smallest capacity
)

// payload holds the words of a record after the head. The table lists the fields of each word,
// lowest bits first, with their sizes in bits. A site (call site), name or text is a text number.
// unrequested is size minus requested size.
//
//	event of a pool     a: number 32, stream 16, segment 16
//	                    b: offset 32, size 32
//	                    c: unrequested 32, site 32
//	its second record   a, b: other bits of the same fields
//	                    c: unrequested's other bits 32, name 32
//	event of a group    a: number 32, stream 32
//	                    b: time 64
//	                    c: text 32, site 32
//	its second record   a: number's other bits 32, name 32
//	                    b: value 64, or digest 64 of a collective
//	                    c: number of earlier collectives 64, or bytes 64 of a collective
type payload struct{ a, b, c uint64 }

const (
	mask16 = 1<<16 - 1
	mask32 = 1<<32 - 1
)

// placementFields holds the fields of a pool's event. There is a second record if the event has a
// name or bits outside the ranges below.
type placementFields struct {
	number      uint64 // first record: bits 0 to 31
	stream      uint64 // first record: bits 0 to 15; less than 2^32
	segment     uint64 // like stream; the segment's number plus 1, or 0 without a segment
	offset      uint64 // first record: bits 8 to 39
	size        uint64 // first record: bits 8 to 39
	unrequested uint64 // first record: bits 0 to 31
}

// pack returns the payload of the first record. siteBits is the call site's text number << 32.
func (p *placementFields) pack(siteBits uint64) payload {
	return payload{
		a: p.number&mask32 | (p.stream&mask16)<<32 | (p.segment&mask16)<<48,
		b: (p.offset>>8)&mask32 | (p.size>>8)<<32,
		c: p.unrequested&mask32 | siteBits,
	}
}

// packSecond returns the payload of the second record.
func (p *placementFields) packSecond(name uint32) payload {
	return payload{
		a: p.number>>32 | (p.stream>>16)<<32 | (p.segment>>16)<<48,
		b: packOuterBits(p.offset) | packOuterBits(p.size)<<32,
		c: p.unrequested>>32 | uint64(name)<<32,
	}
}

// packOuterBits packs bits 0 to 7 and 40 to 63 of v into 32 bits.
func packOuterBits(v uint64) uint64 { return v&0xff | (v>>40)<<8 }

// unpackPlacement reverses pack and packSecond. second is zero without a second record.
func unpackPlacement(first, second payload) placementFields {
	return placementFields{
		number:      first.a&mask32 | second.a<<32,
		stream:      (first.a>>32)&mask16 | ((second.a>>32)&mask16)<<16,
		segment:     first.a>>48 | (second.a>>48)<<16,
		offset:      addOuterBits(first.b&mask32, second.b&mask32),
		size:        addOuterBits(first.b>>32, second.b>>32),
		unrequested: first.c&mask32 | second.c<<32,
	}
}

// addOuterBits returns v, given bits 8 to 39 of v and packOuterBits(v).
func addOuterBits(middle, outer uint64) uint64 {
	return middle<<8 | outer&0xff | (outer>>8)<<40
}
