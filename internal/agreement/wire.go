package agreement

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Ranks send each other payloads of numbers, byte strings and lists. Numbers are encoded in 8
// bytes, in little-endian order. A byte string is encoded as its length, a number, and its bytes. A
// list is the last part of a payload, and extends to its end. For example, the payload with the
// number 7, the byte string "ab" and an empty list has these 18 bytes:
//
//	07 00 00 00 00 00 00 00   7
//	02 00 00 00 00 00 00 00   length of "ab"
//	61 62                     "ab"

// ErrProtocol is wrapped by every error about a payload from another rank.
var ErrProtocol = errors.New("agreement protocol violated")

const (
	// wireVersion is the version of the encoding. Ranks refuse payloads with another version.
	wireVersion = 3

	// MaxLedgers is the maximum number of ledgers in one agreement. A ledger is the history of a
	// pool: a list of events, with positions from 0.
	MaxLedgers = 64

	// MaxTag is the maximum size in bytes of a tag. It names the operation that needs an agreement.
	MaxTag = 200

	// maxPosition limits positions in ledgers, so that sums of two positions do not overflow.
	maxPosition = 1 << 62

	// maxValue limits the size in bytes of an encoded tag or event, and maxCall that of an encoded
	// call. Both are above the sizes of valid ones: for example, event.AppendCall cuts long texts of
	// a call. They limit how much memory a faulty rank can make this rank use.
	maxValue = 512
	maxCall  = 4 << 10
)

// protocolError returns an error that wraps ErrProtocol. The format is that of fmt.Errorf.
func protocolError(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, ErrProtocol)...)
}

// reader decodes a payload. After the first error, its methods return zero values.
type reader struct {
	rest []byte // part that has not been read; empty after an error
	err  error  // first error
}

// fail records an error about a field, unless there was an earlier error.
func (r *reader) fail(field string) {
	if r.err == nil {
		r.err = protocolError("the payload has a malformed or missing field: %s", field)
	}

	r.rest = nil
}

// readUint64 reads a number. field is its name for errors.
func (r *reader) readUint64(field string) uint64 {
	if len(r.rest) < 8 {
		r.fail(field)
		return 0
	}

	v := binary.LittleEndian.Uint64(r.rest)
	r.rest = r.rest[8:]
	return v
}

// readBytes reads a byte string. It fails if the string has more than limit bytes. The result is a
// part of the payload, not a copy.
func (r *reader) readBytes(limit int, field string) []byte {
	size := r.readUint64(field)
	if size > uint64(min(limit, len(r.rest))) {
		r.fail(field)
		return nil
	}

	v := r.rest[:size:size] // its capacity is its length, so that appending to it makes a copy
	r.rest = r.rest[size:]
	return v
}

// readList reads the rest of the payload as a list of at most limit elements. Values of type T must
// have a fixed size.
func readList[T any](r *reader, limit int, field string) []T {
	var zero T
	size := binary.Size(zero)
	if len(r.rest)%size != 0 || len(r.rest)/size > limit {
		r.fail(field)
		return nil
	}

	list := make([]T, len(r.rest)/size)
	if _, err := binary.Decode(r.rest, binary.LittleEndian, list); err != nil {
		r.fail(field)
		return nil
	}

	r.rest = nil
	return list
}

// appendWithLength appends a byte string.
func appendWithLength(dst, v []byte) []byte {
	dst = appendUint64s(dst, uint64(len(v)))
	return append(dst, v...)
}

// appendUint64s appends numbers.
func appendUint64s(dst []byte, values ...uint64) []byte {
	for _, v := range values {
		dst = binary.LittleEndian.AppendUint64(dst, v)
	}

	return dst
}
