package trace

import "errors"

// ErrFormat is wrapped by errors about the contents of a file.
var ErrFormat = errors.New("unreadable trace")

// The layout of a file. Numbers are little-endian.
const (
	magic       = "SYMTRACE"
	version     = 1
	headerBytes = 4096

	offsetVersion  = 8   // uint32
	offsetRecord   = 12  // uint32: bytes of a record
	offsetRank     = 16  // uint32
	offsetSize     = 20  // uint32
	offsetProcess  = 24  // uint32
	offsetCapacity = 32  // uint64: number of records, a power of two
	offsetTexts    = 40  // uint64: offset of the texts
	offsetRoom     = 48  // uint64: bytes of the texts
	offsetStart    = 56  // int64: UTC in nanoseconds since 1970
	offsetNext     = 128 // uint64: events so far
	offsetUsed     = 192 // uint64: bytes of texts so far
	offsetLost     = 200 // uint64: texts for which there was no room
)

// lostText is the number of a text for which there was no room.
const lostText = 1<<32 - 1

// lostShort replaces the number of a text that needs more than 16 bits.
const lostShort = 1<<16 - 1

// record is an event in the file. It fills one line of the processor's cache.
type record struct {
	stamp                   uint64 // number of the record, counted from 1; written first
	number                  uint64
	offset, size, requested int64 // of a group's event: digest or value, bytes or count, time
	stream                  uint32
	segment                 int32
	pool                    uint32 // of a group's event: text of the call or value
	site                    uint32 // number of a text
	group                   uint16 // number of a text
	name                    uint16 // number of a text
	kind                    uint8
	_                       uint8
	end                     uint16 // the low bits of stamp; written last
}

const recordBytes = 64
