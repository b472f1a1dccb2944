package rendezvous

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

// decoder reads requests and replies. Its memory use grows only with the bytes that have arrived,
// so that a forged length cannot exhaust memory.
type decoder struct {
	r    *bufio.Reader
	peer string
	// budget is the maximum total size of the keys and values that are still to be read for the
	// current request.
	budget int
}

func newDecoder(r io.Reader, peer string) *decoder {
	return &decoder{r: bufio.NewReader(r), peer: peer, budget: maxRequestBytes}
}

func (d *decoder) errorf(format string, args ...any) error {
	return fmt.Errorf("%s: %w: %s", d.peer, ErrProtocol, fmt.Sprintf(format, args...))
}

// request reads one request with at most budget bytes of keys and values. It returns io.EOF if the
// connection is closed between requests.
func (d *decoder) request(budget int) (*request, error) {
	b, err := d.r.ReadByte()
	if err != nil {
		return nil, err
	}
	r := &request{query: query(b)}
	if r.query >= queryCount {
		return nil, d.errorf("unknown query %#02x", b)
	}
	d.budget = budget
	if err := d.fields(r, &shapes[r.query]); err != nil {
		return nil, fmt.Errorf("reading a %s: %w", r.query, unexpectedEOF(err))
	}
	return r, nil
}

// unexpectedEOF converts io.EOF in the middle of a request or reply to io.ErrUnexpectedEOF.
func unexpectedEOF(err error) error {
	if err == io.EOF { //nolint:errorlint // Readers return io.EOF itself.
		return io.ErrUnexpectedEOF
	}
	return err
}

func (d *decoder) fields(r *request, s *shape) (err error) {
	if s.nonce {
		if r.nonce, err = d.u32(); err != nil {
			return err
		}
	}
	count := uint64(s.keys)
	if s.counted {
		if count, err = d.length("number of keys", maxKeys); err != nil {
			return err
		}
	}
	for range count {
		if err := d.entry(r, s.values); err != nil {
			return err
		}
	}
	if s.number {
		r.number, err = d.number()
	}
	return err
}

func (d *decoder) entry(r *request, values int) error {
	key, err := d.field("key", maxKeyBytes)
	if err != nil {
		return err
	}
	r.keys = append(r.keys, string(key))
	for range values {
		value, err := d.field("value", maxValueBytes)
		if err != nil {
			return err
		}
		r.values = append(r.values, value)
	}
	return nil
}

func (d *decoder) u8() (byte, error) { return d.r.ReadByte() }

func (d *decoder) u32() (uint32, error) {
	var b [4]byte
	_, err := io.ReadFull(d.r, b[:])
	return binary.LittleEndian.Uint32(b[:]), err
}

func (d *decoder) u64() (uint64, error) {
	var b [8]byte
	_, err := io.ReadFull(d.r, b[:])
	return binary.LittleEndian.Uint64(b[:]), err
}

func (d *decoder) number() (int64, error) {
	n, err := d.u64()
	return int64(n), err
}

func (d *decoder) length(name string, limit uint64) (uint64, error) {
	n, err := d.u64()
	if err == nil && n > limit {
		return 0, d.errorf("%s %d is over the limit of %d", name, n, limit)
	}
	return n, err
}

// field reads a length and then that number of bytes, which the caller owns.
func (d *decoder) field(name string, limit uint64) ([]byte, error) {
	n, err := d.length("length of a "+name, limit)
	if err != nil {
		return nil, err
	}
	// Eight more bytes per field bound the number of empty fields.
	if d.budget -= int(n) + 8; d.budget < 0 {
		return nil, d.errorf("the request is too long")
	}
	return d.bytes(int64(n))
}

func (d *decoder) bytes(n int64) ([]byte, error) {
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
