package agreement

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrProtocol is wrapped by every error about a payload from a peer.
var ErrProtocol = errors.New("agreement protocol violated")

const (
	// wireVersion is the version of the encoding of payloads, which ranks send to each other. Ranks
	// refuse payloads with another version.
	wireVersion = 3

	// MaxLedgers is the maximum number of ledgers (histories of pools) in one agreement.
	MaxLedgers = 64

	// MaxTag is the maximum size in bytes of a tag, which names the operation of an agreement.
	MaxTag = 200

	// maxPosition limits positions in ledgers, so that sums of two positions do not overflow.
	maxPosition = 1 << 62

	// maxValue is the maximum size in bytes of an encoded tag or event, and maxCall that of an
	// encoded call, of which event.AppendCall cuts the texts. Both are above the sizes of valid
	// ones. They limit how much memory a peer can make this rank use.
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

// readBytes reads a size and this number of bytes. It fails if the size is above limit. The result
// is a part of the payload.
func (r *reader) readBytes(limit int, field string) []byte {
	size := r.readUint64(field)
	if size > uint64(min(limit, len(r.rest))) {
		r.fail(field)
		return nil
	}

	v := r.rest[:size:size] // without capacity, so that appending copies
	r.rest = r.rest[size:]
	return v
}

// readList reads the rest of the payload as a list of at most limit elements. T must have a fixed
// size.
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

// appendWithLength appends the size of v and v, for readBytes.
func appendWithLength(dst, v []byte) []byte {
	dst = appendUint64s(dst, uint64(len(v)))
	return append(dst, v...)
}

// appendUint64s appends numbers of 8 bytes each, in little-endian order.
func appendUint64s(dst []byte, values ...uint64) []byte {
	for _, v := range values {
		dst = binary.LittleEndian.AppendUint64(dst, v)
	}

	return dst
}
