package agreement

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrProtocol is wrapped by every error about a payload from a peer.
var ErrProtocol = errors.New("agreement protocol violated")

const (
	// wireVersion is the version of the encoding. Ranks refuse payloads with another version.
	wireVersion = 3

	// MaxLedgers is the maximum number of ledgers in one agreement.
	MaxLedgers = 64

	// MaxTag is the maximum size of a tag in bytes.
	MaxTag = 200

	// maxPosition limits positions in ledgers, so that arithmetic on them does not overflow.
	maxPosition = 1 << 62

	// maxValue is the maximum size in bytes of an encoded tag, call or event.
	maxValue = 512
)

func protocolError(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, ErrProtocol)...)
}

// reader decodes a payload. After the first error, its methods return zero values.
type reader struct {
	rest []byte // part that has not been read
	err  error  // first error
}

func (r *reader) fail(field string) {
	if r.err == nil {
		r.err = protocolError("the payload has a malformed or missing field: %s", field)
	}
	r.rest = nil
}

func (r *reader) readUint64(field string) uint64 {
	if len(r.rest) < 8 {
		r.fail(field)
		return 0
	}
	v := binary.LittleEndian.Uint64(r.rest)
	r.rest = r.rest[8:]
	return v
}

// readBytes reads a size and this number of bytes, at most limit.
func (r *reader) readBytes(limit int, field string) []byte {
	size := r.readUint64(field)
	if size > uint64(min(limit, len(r.rest))) {
		r.fail(field)
		return nil
	}
	v := r.rest[:size:size]
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

// appendWithLength appends what readBytes reads.
func appendWithLength(dst, v []byte) []byte {
	return append(appendUint64s(dst, uint64(len(v))), v...)
}

func appendUint64s(dst []byte, values ...uint64) []byte {
	for _, v := range values {
		dst = binary.LittleEndian.AppendUint64(dst, v)
	}
	return dst
}
