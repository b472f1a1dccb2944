package plain

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
)

// input reads values from a file. The file can be damaged: for example, it announces a string of 60
// MiB, but ends 3 bytes later. If the file ends within a value, the methods except peek return an
// error that wraps ErrFormat.
type input struct {
	r           *bufio.Reader
	largeBuffer []byte // for results of readBytes that are larger than the buffer of r
	offset      int64  // number of bytes read so far
}

func newInput(r io.Reader) *input {
	const bufferBytes = 64 << 10
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

// readByte reads one byte.
func (in *input) readByte() (byte, error) {
	b, err := in.r.ReadByte()
	if err != nil {
		return 0, in.convertEOF(err)
	}

	in.offset++
	return b, nil
}

// convertEOF converts an error that reports the end of the file to one that wraps ErrFormat. It
// returns other errors unchanged.
func (in *input) convertEOF(err error) error {
	isEOF := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	if isEOF {
		return formatError("it is cut off after %d bytes", in.offset)
	}

	return err
}

const maxStringBytes = 64 << 20 // a damaged file could state any size

// readBytes reads count bytes, a number that the file states. The result is valid until the next
// read.
func (in *input) readBytes(count uint64) ([]byte, error) {
	if count > maxStringBytes {
		return nil, formatError("the string at byte %d has %d bytes, more than %d",
			in.offset, count, maxStringBytes)
	}

	fitsIntoBuffer := count <= uint64(in.r.Size())
	if !fitsIntoBuffer {
		return in.readLarge(int(count))
	}

	b, err := in.r.Peek(int(count)) // a part of the buffer, so that nothing is copied
	if err != nil {
		return nil, in.convertEOF(err)
	}

	_, _ = in.r.Discard(int(count)) // cannot fail: the bytes are in the buffer
	in.offset += int64(count)
	return b, nil
}

// readLarge reads count bytes into largeBuffer. The buffer grows in steps, and each step is filled
// before the next one. So if count is wrong and the file is short, little memory is allocated.
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

// readUint reads a little-endian unsigned integer of size bytes, at most 8.
func (in *input) readUint(size int) (uint64, error) {
	b, err := in.readBytes(uint64(size))
	if err != nil {
		return 0, err
	}

	var word [8]byte // if size is below 8, the high bytes remain zero
	copy(word[:], b)
	return binary.LittleEndian.Uint64(word[:]), nil
}
