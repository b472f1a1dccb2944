package rendezvous

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

// decoder reads the requests and replies of the store's protocol. It does not trust the peer: it
// rejects lengths above the protocol's limits, and grows large buffers only as their bytes arrive.
type decoder struct {
	r    *bufio.Reader
	peer string // address of the other side, for errors
	// remainingBytes limits the unread keys and values, with their lengths.
	remainingBytes int
}

func newDecoder(r io.Reader, peer string) *decoder {
	return &decoder{r: bufio.NewReader(r), peer: peer, remainingBytes: maxRequestBytes}
}

// errorf returns an ErrProtocol that names the peer.
func (d *decoder) errorf(format string, args ...any) error {
	return fmt.Errorf("%s: %w: %s", d.peer, ErrProtocol, fmt.Sprintf(format, args...))
}

// readRequest reads a request. Its keys and values, with their lengths, may have maxBytes in total.
// If the connection was closed between two requests, readRequest returns io.EOF.
func (d *decoder) readRequest(maxBytes int) (*request, error) {
	queryByte, err := d.r.ReadByte()
	if err != nil {
		return nil, err
	}

	r := &request{query: query(queryByte)}
	isUnknown := r.query >= queryCount
	if isUnknown {
		return nil, d.errorf("unknown query %#02x", queryByte)
	}

	d.remainingBytes = maxBytes
	if err := d.readFields(r, &requestFormats[r.query]); err != nil {
		return nil, fmt.Errorf("reading a %s: %w", r.query, unexpectedEOF(err))
	}

	return r, nil
}

// unexpectedEOF turns io.EOF into io.ErrUnexpectedEOF.
func unexpectedEOF(err error) error {
	if err == io.EOF { //nolint:errorlint // Readers return io.EOF itself.
		return io.ErrUnexpectedEOF
	}

	return err
}

// readFields reads the fields that follow the query of r.
func (d *decoder) readFields(r *request, format *requestFormat) (err error) {
	if format.hasNonce {
		r.nonce, err = d.readU32()
		if err != nil {
			return err
		}
	}

	keyCount := uint64(format.fixedKeys)
	if format.hasKeyCount {
		keyCount, err = d.readLength("number of keys", maxKeys)
		if err != nil {
			return err
		}
	}

	for range keyCount {
		err = d.readEntry(r, format.valuesPerKey)
		if err != nil {
			return err
		}
	}

	if format.hasNumber {
		r.number, err = d.readNumber()
	}

	return err
}

// readEntry appends a key and its values to r.
func (d *decoder) readEntry(r *request, valuesPerKey int) error {
	key, err := d.readField("key", maxKeyBytes)
	if err != nil {
		return err
	}

	r.keys = append(r.keys, string(key))
	for range valuesPerKey {
		value, err := d.readField("value", maxValueBytes)
		if err != nil {
			return err
		}

		r.values = append(r.values, value)
	}

	return nil
}

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

// readLength reads a length or count. name describes it in errors, as in "number of keys".
func (d *decoder) readLength(name string, limit uint64) (uint64, error) {
	n, err := d.readU64()
	if err == nil && n > limit {
		return 0, d.errorf("%s %d is over the limit of %d", name, n, limit)
	}

	return n, err
}

// readField reads a key or a value of at most limit bytes. kind is "key" or "value", for errors.
func (d *decoder) readField(kind string, limit uint64) ([]byte, error) {
	n, err := d.readLength("length of a "+kind, limit)
	if err != nil {
		return nil, err
	}

	const lengthBytes = 8
	d.remainingBytes -= lengthBytes + int(n)
	if d.remainingBytes < 0 {
		return nil, d.errorf("the request is too long")
	}

	return d.readBytes(int64(n))
}

// readValueReply reads a reply that consists of a value.
func (d *decoder) readValueReply() ([]byte, error) {
	d.remainingBytes = maxRequestBytes
	return d.readField("value", maxValueBytes)
}

func (d *decoder) readBytes(n int64) ([]byte, error) {
	const maxPreallocated = 64 << 10
	if n <= maxPreallocated {
		b := make([]byte, n)
		_, err := io.ReadFull(d.r, b)
		return b, unexpectedEOF(err)
	}

	var buf bytes.Buffer
	_, err := io.CopyN(&buf, d.r, n)
	return buf.Bytes(), unexpectedEOF(err)
}
