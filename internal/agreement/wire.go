package agreement

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrProtocol is wrapped by every error about bytes that came from a peer.
var ErrProtocol = errors.New("agreement protocol violated")

const (
	// wireVersion changes whenever the encoding does; mixed versions must not guess.
	wireVersion = 1

	// MaxPayload bounds a payload and a summary, in bytes. The largest honest summary, of
	// 64 ledgers and 4096 ranks in the worst possible order, is below it.
	MaxPayload = 1 << 20

	// MaxLedgers bounds the ledgers of one agreement: pools are few.
	MaxLedgers = 64

	// MaxTag bounds a tag, in bytes.
	MaxTag = 200

	// maxRanks bounds the number of a rank, and with it what a peer can make us allocate.
	maxRanks = 1 << 20

	// maxPosition leaves room to compute with positions. No ledger gets there: at an event a
	// nanosecond it takes a century.
	maxPosition = 1 << 62

	// maxValue bounds one variant: a list of ledgers and an event with its site are the longest.
	maxValue = 1 + 8*MaxLedgers
)

func protocolError(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, ErrProtocol)...)
}

// reader decodes a payload. The first violation sticks; what is read after it is zero.
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

func (r *reader) u8(what string) byte {
	if len(r.b) < 1 {
		r.fail(what)
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

func (r *reader) bool(what string) bool {
	v := r.u8(what)
	if v > 1 {
		r.fail(what)
	}
	return v == 1
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

func (r *reader) uvarint(what string) uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail(what)
		return 0
	}
	r.b = r.b[n:]
	return v
}

// count reads a number of things of at least one byte each, so that no count can exceed the bytes
// that are there.
func (r *reader) count(limit int, what string) int {
	v := r.uvarint(what)
	if v > uint64(limit) || v > uint64(len(r.b)) {
		r.fail(what)
		return 0
	}
	return int(v)
}

func (r *reader) bytes(limit int, what string) []byte {
	n := r.count(limit, what)
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

func appendBytes(dst, v []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(v)))
	return append(dst, v...)
}

func appendBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, 1)
	}
	return append(dst, 0)
}
