package trace

import "errors"

// ErrFormat is wrapped by errors about the contents of a trace.
var ErrFormat = errors.New("unreadable trace")

// A trace contains the events of one rank. It consists of a header, a ring buffer of records, and a
// text space with all strings, to which records refer by number. An event belongs to a source, a
// memory pool or a group of ranks, and takes one or two records. See docs/reference/trace.md.

// Offsets in the header. All numbers are little-endian.
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
	offsetHost           = 64  // name of the machine, padded with zeros to maxHostBytes
	offsetClaimedCount   = 128 // uint64: number of records claimed so far
	offsetUsedTextBytes  = 192 // uint64: bytes of texts written so far
	offsetLostTexts      = 200 // uint64: number of texts that did not fit
)

const maxHostBytes = 64 // the longest name that Linux permits

// Text numbers without a text. Number 0 is the empty text.
const (
	lostTextNumber      = 1<<32 - 1 // The text did not fit into the text space.
	unknownSourceNumber = 1<<16 - 1 // The number of the source's text did not fit into 16 bits.
)

// record is a record in the file. The head is written last.
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
//	bits 0 to 31    low half of the record's number from 1; differs during a write
//	bits 32 to 47   number of the text that names the source
//	bits 48 to 55   kind of the event; 0 in a claimed record that is not used
//	bit 56          first of two records
//	bit 57          second of two records
//	bits 58 to 63   age: number of later records claimed before this record was written
const (
	sourceShift   = 32
	kindShift     = 48
	hasSecondFlag = 1 << 56
	isSecondFlag  = 1 << 57
	ageShift      = 58
)

// Sources share the ring. A source claims 16 records with one atomic operation, and may write them
// after the records of a later claim. Readers therefore sort by the number of records that were
// claimed when a record was written, which is the sum of the record's number and age. Example:
//
//	pool A claims records 1 to 16 and writes record 1     age 16-1  = 15, sum 16
//	pool B claims records 17 to 32 and writes record 17   age 32-17 = 15, sum 32
//	pool A writes record 2                                age 32-2  = 30, sum 32
//
// Records with equal sums are sorted by number.
const (
	batchRecords = 16
	maxAge       = 63 // largest number of 6 bits; sources do not use older records
	// minRecords is the smallest capacity. It keeps records up to maxAge in the ring.
	minRecords = 2 * (maxAge + 1)
)

// payload holds the words of a record after the head. The table lists the fields of each word from
// the lowest bits, with their sizes in bits:
//
//	                  a                        b                  c
//	event of a pool   number 32, stream 16,    offset/256 32,     size-requested 32,
//	                  segment+1 16             size/256 32        site 32
//	its second record the other bits of the same values           the other bits, name 32
//	event of a group  number 32, stream 32     time 64            text 32, site 32
//	its second record number>>32 32, name 32   value or digest    collectives or bytes
//
// site (the call site), name and text are text numbers.
type payload struct{ a, b, c uint64 }

const (
	mask16 = 1<<16 - 1
	mask32 = 1<<32 - 1
)

// placementFields holds the values of a pool's event. Their most frequent bits are in the first
// record:
//
//	number, unrequested   bits 0 to 31
//	stream, segment       bits 0 to 15
//	offset, size          bits 8 to 39
//
// A second record has the other bits and the event's name, unless all of them are 0.
type placementFields struct {
	number      uint64
	stream      uint64 // at most 32 bits
	segment     uint64 // number plus 1, or 0 without a segment; at most 32 bits
	offset      uint64
	size        uint64
	unrequested uint64 // size minus requested size
}

// pack returns the payload of the first record. siteBits has the call site in its upper half.
func (p *placementFields) pack(siteBits uint64) payload {
	return payload{
		a: p.number&mask32 | p.stream&mask16<<32 | p.segment&mask16<<48,
		b: p.offset>>8&mask32 | p.size>>8<<32, // shifts out bits 40 to 63 of size
		c: p.unrequested&mask32 | siteBits,
	}
}

// packSecond returns the payload of the second record. name is a text number.
func (p *placementFields) packSecond(name uint32) payload {
	return payload{
		a: p.number>>32 | p.stream>>16<<32 | p.segment>>16<<48,
		b: packOuterBits(p.offset) | packOuterBits(p.size)<<32,
		c: p.unrequested>>32 | uint64(name)<<32,
	}
}

// packOuterBits packs bits 0 to 7 and 40 to 63 of v into 32 bits.
func packOuterBits(v uint64) uint64 { return v&0xff | v>>40<<8 }

// unpackPlacement reverses pack and packSecond. A missing second record is zero.
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

// combineBits returns the value with bits 8 to 39 from middle and the rest from packOuterBits.
func combineBits(middle, outer uint64) uint64 { return middle<<8 | outer&0xff | outer>>8<<40 }
