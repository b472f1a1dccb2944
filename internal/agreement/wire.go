package agreement

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrProtocol is wrapped by every error about a payload from a peer.
var ErrProtocol = errors.New("agreement protocol violated")

const (
	// wireVersion changes with the encoding. Ranks reject payloads with other versions.
	wireVersion = 3

	// MaxLedgers is the maximum number of ledgers in one agreement.
	MaxLedgers = 64

	// MaxTag is the maximum size of a tag in bytes.
	MaxTag = 200

	// maxPosition bounds positions, so that arithmetic on them cannot overflow. A ledger would need
	// a century to reach it.
	maxPosition = 1 << 62

	// maxValue is the maximum size of an encoded tag, call, or event in bytes.
	maxValue = 512
)

func protocolError(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, ErrProtocol)...)
}

// reader decodes a payload. After the first error, it returns only zero values.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(field string) {
	if r.err == nil {
		r.err = protocolError("decoding %s", field)
	}
	r.b = nil
}

func (r *reader) u64(field string) uint64 {
	if len(r.b) < 8 {
		r.fail(field)
		return 0
	}
	v := binary.LittleEndian.Uint64(r.b)
	r.b = r.b[8:]
	return v
}

func (r *reader) bytes(limit int, field string) []byte {
	n := r.u64(field)
	if n > uint64(min(limit, len(r.b))) {
		r.fail(field)
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

func readList[T any](r *reader, limit int, field string) []T {
	var zero T
	size := binary.Size(zero)
	if len(r.b)%size != 0 || len(r.b)/size > limit {
		r.fail(field)
		return nil
	}
	list := make([]T, len(r.b)/size)
	if _, err := binary.Decode(r.b, binary.LittleEndian, list); err != nil {
		r.fail(field)
		return nil
	}
	r.b = nil
	return list
}

func appendBytes(dst, v []byte) []byte {
	return append(appendWords(dst, uint64(len(v))), v...)
}

func appendWords(dst []byte, words ...uint64) []byte {
	for _, w := range words {
		dst = binary.LittleEndian.AppendUint64(dst, w)
	}
	return dst
}
