package rendezvous

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

// decoder allocates memory only for bytes that have arrived, so that a forged length cannot exhaust
// memory.
type decoder struct {
	r    *bufio.Reader
	peer string
	// remainingBytes limits the unread keys and values of the current request.
	remainingBytes int
}

func newDecoder(r io.Reader, peer string) *decoder {
	return &decoder{r: bufio.NewReader(r), peer: peer, remainingBytes: maxRequestBytes}
}

func (d *decoder) errorf(format string, args ...any) error {
	return fmt.Errorf("%s: %w: %s", d.peer, ErrProtocol, fmt.Sprintf(format, args...))
}

// readRequest returns io.EOF if the connection was closed between requests.
func (d *decoder) readRequest(maxBytes int) (*request, error) {
	b, err := d.r.ReadByte()
	if err != nil {
		return nil, err
	}
	r := &request{query: query(b)}
	if r.query >= queryCount {
		return nil, d.errorf("unknown query %#02x", b)
	}
	d.remainingBytes = maxBytes
	if err := d.readFields(r, &requestFormats[r.query]); err != nil {
		return nil, fmt.Errorf("reading a %s: %w", r.query, unexpectedEOF(err))
	}
	return r, nil
}

func unexpectedEOF(err error) error {
	if err == io.EOF { //nolint:errorlint // Readers return io.EOF itself.
		return io.ErrUnexpectedEOF
	}
	return err
}

func (d *decoder) readFields(r *request, format *requestFormat) (err error) {
	if format.hasNonce {
		if r.nonce, err = d.readU32(); err != nil {
			return err
		}
	}
	count := uint64(format.keyCount)
	if format.hasCount {
		if count, err = d.readLength("number of keys", maxKeys); err != nil {
			return err
		}
	}
	for range count {
		if err := d.readEntry(r, format.valueCount); err != nil {
			return err
		}
	}
	if format.hasNumber {
		r.number, err = d.readNumber()
	}
	return err
}

func (d *decoder) readEntry(r *request, valueCount int) error {
	key, err := d.readField("key", maxKeyBytes)
	if err != nil {
		return err
	}
	r.keys = append(r.keys, string(key))
	for range valueCount {
		value, err := d.readField("value", maxValueBytes)
		if err != nil {
			return err
		}
		r.values = append(r.values, value)
	}
	return nil
}

func (d *decoder) readU8() (byte, error) { return d.r.ReadByte() }

func (d *decoder) readU32() (uint32, error) {
	var b [4]byte
	_, err := io.ReadFull(d.r, b[:])
	return binary.LittleEndian.Uint32(b[:]), err
}

func (d *decoder) readU64() (uint64, error) {
	var b [8]byte
	_, err := io.ReadFull(d.r, b[:])
	return binary.LittleEndian.Uint64(b[:]), err
}

func (d *decoder) readNumber() (int64, error) {
	n, err := d.readU64()
	return int64(n), err
}

func (d *decoder) readLength(name string, limit uint64) (uint64, error) {
	n, err := d.readU64()
	if err == nil && n > limit {
		return 0, d.errorf("%s %d is over the limit of %d", name, n, limit)
	}
	return n, err
}

func (d *decoder) readField(name string, limit uint64) ([]byte, error) {
	n, err := d.readLength("length of a "+name, limit)
	if err != nil {
		return nil, err
	}
	// The 8 bytes of the length count too. This bounds the number of empty fields.
	if d.remainingBytes -= int(n) + 8; d.remainingBytes < 0 {
		return nil, d.errorf("the request is too long")
	}
	return d.readBytes(int64(n))
}

func (d *decoder) readBytes(n int64) ([]byte, error) {
	const maxPrealloc = 64 << 10
	if n <= maxPrealloc {
		b := make([]byte, n)
		_, err := io.ReadFull(d.r, b)
		return b, unexpectedEOF(err)
	}
	var buf bytes.Buffer
	_, err := io.CopyN(&buf, d.r, n)
	return buf.Bytes(), unexpectedEOF(err)
}
