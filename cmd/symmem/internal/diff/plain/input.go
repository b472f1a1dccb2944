package plain

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
)

// input reads values from a file that may be damaged. Its methods return an error that wraps
// ErrFormat if the file ends too early.
type input struct {
	r          *bufio.Reader
	longString []byte // buffer for strings that are too long for the buffer of r
	offset     int64  // of the next value in the file, in bytes
}

func newInput(r io.Reader) *input {
	const bufferBytes = 64 << 10
	return &input{r: bufio.NewReaderSize(r, bufferBytes)}
}

// peek returns the next byte without consuming it, or io.EOF at the end of the file.
func (in *input) peek() (byte, error) {
	b, err := in.r.Peek(1)
	if err != nil {
		return 0, err
	}

	return b[0], nil
}

func (in *input) readByte() (byte, error) {
	b, err := in.r.ReadByte()
	if err != nil {
		return 0, in.convertEOF(err)
	}

	in.offset++
	return b, nil
}

// convertEOF returns an error that wraps ErrFormat for an EOF error, and other errors unchanged.
func (in *input) convertEOF(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return formatError("it is cut off after %d bytes", in.offset)
	}

	return err
}

const maxStringBytes = 64 << 20 // a file with longer strings is probably damaged

// readBytes reads count bytes. The result is valid until the next read.
func (in *input) readBytes(count uint64) ([]byte, error) {
	if count > maxStringBytes {
		return nil, formatError("the string at byte %d has %d bytes, more than %d",
			in.offset, count, maxStringBytes)
	}

	if count > uint64(in.r.Size()) {
		return in.readLongString(int(count))
	}

	b, err := in.r.Peek(int(count)) // does not copy, unlike Read
	if err != nil {
		return nil, in.convertEOF(err)
	}

	_, _ = in.r.Discard(int(count)) // cannot fail: Peek has buffered the bytes
	in.offset += int64(count)
	return b, nil
}

// readLongString reads count bytes. It grows the buffer in steps, because a wrong count in a short
// file must not allocate much memory.
func (in *input) readLongString(count int) ([]byte, error) {
	const maxStepBytes = 1 << 20
	in.longString = in.longString[:0]
	for len(in.longString) < count {
		begin := len(in.longString)
		stepBytes := min(count-begin, maxStepBytes)
		in.longString = append(in.longString, make([]byte, stepBytes)...)
		if _, err := io.ReadFull(in.r, in.longString[begin:]); err != nil {
			return nil, in.convertEOF(err)
		}

		in.offset += int64(stepBytes)
	}

	return in.longString, nil
}

// readUint reads a little-endian unsigned integer of up to 8 bytes.
func (in *input) readUint(size int) (uint64, error) {
	b, err := in.readBytes(uint64(size))
	if err != nil {
		return 0, err
	}

	var word [8]byte
	copy(word[:], b)
	return binary.LittleEndian.Uint64(word[:]), nil
}
