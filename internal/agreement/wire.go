package agreement

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrProtocol is wrapped by every error about a payload from a peer.
var ErrProtocol = errors.New("agreement protocol violated")

const (
	// wireVersion changes with the encoding. Ranks refuse other versions.
	wireVersion = 3

	// MaxLedgers is the maximum number of ledgers in one agreement.
	MaxLedgers = 64

	// MaxTag is the maximum size of a tag in bytes.
	MaxTag = 200

	// maxPosition prevents overflow in arithmetic on positions.
	maxPosition = 1 << 62

	// maxValue limits an encoded tag, call or event, in bytes.
	maxValue = 512
)

func protocolError(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, ErrProtocol)...)
}

// reader returns zero values after the first error.
type reader struct {
	rest []byte
	err  error
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

func (r *reader) readBytes(limit int, field string) []byte {
	n := r.readUint64(field)
	if n > uint64(min(limit, len(r.rest))) {
		r.fail(field)
		return nil
	}
	v := r.rest[:n:n]
	r.rest = r.rest[n:]
	return v
}

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

func appendWithLength(dst, v []byte) []byte {
	return append(appendUint64s(dst, uint64(len(v))), v...)
}

func appendUint64s(dst []byte, values ...uint64) []byte {
	for _, w := range values {
		dst = binary.LittleEndian.AppendUint64(dst, w)
	}
	return dst
}
