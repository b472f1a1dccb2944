package agreement

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrProtocol is wrapped by every error about a payload from another rank.
var ErrProtocol = errors.New("agreement protocol violated")

const (
	uint64Bytes = 8

	// wireVersion is the version of the encoding. Ranks refuse payloads of other versions.
	wireVersion = 3

	// MaxLedgers is the maximum number of ledgers (histories of pools) in one agreement.
	MaxLedgers = 64

	// MaxTag is the maximum size in bytes of a tag, the name of the operation that needs an agreement.
	MaxTag = 200

	// maxPosition limits positions in ledgers, so that sums of two positions do not overflow.
	maxPosition = 1 << 62

	// These limits, in bytes, exceed all valid sizes. Without them, a faulty rank could make this rank
	// use much memory.
	maxValue = 512     // of an encoded tag or event
	maxCall  = 4 << 10 // of an encoded call, in which event.AppendCall has cut long texts
)

// protocolError returns a formatted error that wraps ErrProtocol.
func protocolError(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, ErrProtocol)...)
}

// reader decodes a payload: little-endian numbers, byte strings with a length prefix, and a list
// that extends to the end. After the first error, its methods return zero values.
type reader struct {
	rest []byte // unread part; empty after an error
	err  error  // first error
}

// fail records an error about a named field, unless there was an earlier error.
func (r *reader) fail(field string) {
	if r.err == nil {
		r.err = protocolError("the payload has a malformed or missing field: %s", field)
	}

	r.rest = nil
}

func (r *reader) readUint64(field string) uint64 {
	if len(r.rest) < uint64Bytes {
		r.fail(field)
		return 0
	}

	v := binary.LittleEndian.Uint64(r.rest)
	r.rest = r.rest[uint64Bytes:]
	return v
}

// readBytes reads a byte string of at most limit bytes. The result aliases the payload.
func (r *reader) readBytes(limit int, field string) []byte {
	size := r.readUint64(field)
	if size > uint64(min(limit, len(r.rest))) {
		r.fail(field)
		return nil
	}

	v := r.rest[:size:size] // without capacity, so that an append does not change rest
	r.rest = r.rest[size:]
	return v
}

// readList reads the rest of the payload as a list of at most limit elements. Values of type T must
// have a fixed size.
func readList[T any](r *reader, limit int, field string) []T {
	var zero T
	size := binary.Size(zero)
	length, remainder := len(r.rest)/size, len(r.rest)%size
	if remainder != 0 || length > limit {
		r.fail(field)
		return nil
	}

	list := make([]T, length)
	if _, err := binary.Decode(r.rest, binary.LittleEndian, list); err != nil {
		r.fail(field)
		return nil
	}

	r.rest = nil
	return list
}

func appendWithLength(dst, v []byte) []byte {
	dst = appendUint64s(dst, uint64(len(v)))
	return append(dst, v...)
}

func appendUint64s(dst []byte, values ...uint64) []byte {
	for _, v := range values {
		dst = binary.LittleEndian.AppendUint64(dst, v)
	}

	return dst
}
