package agreement

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrProtocol is wrapped by every error about bytes from a peer.
var ErrProtocol = errors.New("agreement protocol violated")

const (
	// wireVersion is incremented with every change of the encoding, so that different versions do
	// not misread each other.
	wireVersion = 3

	// MaxLedgers bounds the ledgers of one agreement.
	MaxLedgers = 64

	// MaxTag bounds a tag, in bytes.
	MaxTag = 200

	// maxPosition leaves room for arithmetic on positions. No ledger reaches it: at an event per
	// nanosecond it takes a century.
	maxPosition = 1 << 62

	// maxValue bounds a tag, a call and an event with its site, in bytes.
	maxValue = 512
)

func protocolError(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, ErrProtocol)...)
}

// reader decodes a payload. It keeps the first error and returns zeros after it.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(what string) {
	if r.err == nil {
		r.err = protocolError("decoding %s", what)
	}
	r.b = nil
}

func (r *reader) u64(what string) uint64 {
	if len(r.b) < 8 {
		r.fail(what)
		return 0
	}
	v := binary.LittleEndian.Uint64(r.b)
	r.b = r.b[8:]
	return v
}

func (r *reader) bytes(limit int, what string) []byte {
	n := r.u64(what)
	if n > uint64(min(limit, len(r.b))) {
		r.fail(what)
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

// listOf reads the rest as a list of values of a fixed size.
func listOf[T any](r *reader, limit int, what string) []T {
	var zero T
	size := binary.Size(zero)
	if len(r.b)%size != 0 || len(r.b)/size > limit {
		r.fail(what)
		return nil
	}
	list := make([]T, len(r.b)/size)
	if _, err := binary.Decode(r.b, binary.LittleEndian, list); err != nil {
		r.fail(what)
		return nil
	}
	r.b = nil
	return list
}

func appendBytes(dst, v []byte) []byte {
	return append(appendWords(dst, uint64(len(v))), v...)
}

// appendWords encodes integers such that encodings can be compared bytewise.
func appendWords(dst []byte, words ...uint64) []byte {
	for _, w := range words {
		dst = binary.LittleEndian.AppendUint64(dst, w)
	}
	return dst
}
