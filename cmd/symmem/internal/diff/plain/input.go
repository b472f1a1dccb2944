package plain

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
)

// input reads values from a file. If the file ends before a value is complete, the methods other
// than peek return an error that wraps ErrFormat.
type input struct {
	r           *bufio.Reader
	largeBuffer []byte // holds the last result of readBytes that did not fit into the buffer of r
	offset      int64  // number of bytes read
}

func newInput(r io.Reader) *input {
	const bufferBytes = 1 << 16
	return &input{r: bufio.NewReaderSize(r, bufferBytes)}
}

// peek returns the next byte without reading it. At the end of the file, the error is io.EOF.
func (in *input) peek() (byte, error) {
	b, err := in.r.Peek(1)
	if err != nil {
		return 0, err
	}

	return b[0], nil
}

// convertEOF replaces an error about the end of the file with an error that wraps ErrFormat. It
// returns other errors unchanged.
func (in *input) convertEOF(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return formatError("it is cut off after %d bytes", in.offset)
	}

	return err
}

func (in *input) readByte() (byte, error) {
	b, err := in.r.ReadByte()
	if err != nil {
		return 0, in.convertEOF(err)
	}

	in.offset++
	return b, nil
}

const maxStringBytes = 64 << 20 // limit of the count of readBytes

// readBytes reads count bytes. The result is valid until the next read. count comes from the file,
// so it can be wrong.
func (in *input) readBytes(count uint64) ([]byte, error) {
	if count > maxStringBytes {
		return nil, formatError("the string at byte %d has %d bytes, more than %d",
			in.offset, count, maxStringBytes)
	}

	if count > uint64(in.r.Size()) {
		return in.readLarge(int(count))
	}

	b, err := in.r.Peek(int(count))
	if err != nil {
		return nil, in.convertEOF(err)
	}

	_, _ = in.r.Discard(int(count)) // cannot fail: the bytes are buffered
	in.offset += int64(count)
	return b, nil
}

// readLarge reads count bytes into largeBuffer. It allocates memory step by step, so that a wrong
// count in a short file cannot make it allocate much more memory than the file has bytes.
func (in *input) readLarge(count int) ([]byte, error) {
	const maxStepBytes = 1 << 20
	in.largeBuffer = in.largeBuffer[:0]
	for len(in.largeBuffer) < count {
		begin := len(in.largeBuffer)
		stepBytes := min(count-begin, maxStepBytes)
		in.largeBuffer = append(in.largeBuffer, make([]byte, stepBytes)...)
		if _, err := io.ReadFull(in.r, in.largeBuffer[begin:]); err != nil {
			return nil, in.convertEOF(err)
		}

		in.offset += int64(stepBytes)
	}

	return in.largeBuffer, nil
}

// readUint reads a little-endian unsigned integer of up to 8 bytes.
func (in *input) readUint(size int) (uint64, error) {
	b, err := in.readBytes(uint64(size))
	if err != nil {
		return 0, err
	}

	var word [8]byte // the high bytes remain zero
	copy(word[:], b)
	return binary.LittleEndian.Uint64(word[:]), nil
}
