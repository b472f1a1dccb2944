package rendezvous

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

// decoder reads the requests and replies of the store's protocol. It allocates memory only for
// bytes that have arrived, so that a forged length cannot exhaust memory.
type decoder struct {
	r    *bufio.Reader
	peer string // address of the peer, for errors
	// remainingBytes is the maximum length of the keys and values of the current request that have
	// not been read.
	remainingBytes int
}

// newDecoder returns a decoder for a connection with a peer, whose address appears in errors.
func newDecoder(r io.Reader, peer string) *decoder {
	return &decoder{r: bufio.NewReader(r), peer: peer, remainingBytes: maxRequestBytes}
}

// errorf returns an ErrProtocol that names the peer.
func (d *decoder) errorf(format string, args ...any) error {
	return fmt.Errorf("%s: %w: %s", d.peer, ErrProtocol, fmt.Sprintf(format, args...))
}

// readRequest reads a request with keys and values of at most maxBytes. It returns io.EOF if the
// connection was closed between requests.
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

// unexpectedEOF returns io.ErrUnexpectedEOF instead of io.EOF, and other errors unchanged.
func unexpectedEOF(err error) error {
	if err == io.EOF { //nolint:errorlint // Readers return io.EOF itself.
		return io.ErrUnexpectedEOF
	}
	return err
}

// readFields reads the fields of r, which the query's format lists.
func (d *decoder) readFields(r *request, format *requestFormat) (err error) {
	if format.hasNonce {
		r.nonce, err = d.readU32()
		if err != nil {
			return err
		}
	}
	keyCount := uint64(format.keyCount)
	if format.hasCount {
		keyCount, err = d.readLength("number of keys", maxKeys)
		if err != nil {
			return err
		}
	}
	for range keyCount {
		if err := d.readEntry(r, format.valueCount); err != nil {
			return err
		}
	}
	if format.hasNumber {
		r.number, err = d.readNumber()
	}
	return err
}

// readEntry reads a key and its values.
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

// readLength reads a length or count. The name describes it in the error if it is over the limit.
func (d *decoder) readLength(name string, limit uint64) (uint64, error) {
	n, err := d.readU64()
	if err == nil && n > limit {
		return 0, d.errorf("%s %d is over the limit of %d", name, n, limit)
	}
	return n, err
}

// readField reads a key or value, as name says, of at most limit bytes.
func (d *decoder) readField(name string, limit uint64) ([]byte, error) {
	n, err := d.readLength("length of a "+name, limit)
	if err != nil {
		return nil, err
	}
	// The bytes of the length count too, which bounds the number of empty fields.
	const lengthBytes = 8
	d.remainingBytes -= int(n) + lengthBytes
	if d.remainingBytes < 0 {
		return nil, d.errorf("the request is too long")
	}
	return d.readBytes(int64(n))
}

// readBytes reads exactly n bytes.
func (d *decoder) readBytes(n int64) ([]byte, error) {
	const maxPrealloc = 64 << 10 // bytes that are allocated before they arrive
	if n <= maxPrealloc {
		b := make([]byte, n)
		_, err := io.ReadFull(d.r, b)
		return b, unexpectedEOF(err)
	}
	var buf bytes.Buffer
	_, err := io.CopyN(&buf, d.r, n)
	return buf.Bytes(), unexpectedEOF(err)
}
