package plain

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
)

// input reads from a file. Its methods return an error at the end of the file.
type input struct {
	r           *bufio.Reader
	largeBuffer []byte
	offset      int64
}

func newInput(r io.Reader) *input { return &input{r: bufio.NewReaderSize(r, 1<<16)} }

func (in *input) peek() (byte, error) {
	b, err := in.r.Peek(1)
	if err != nil {
		return 0, err
	}
	return b[0], nil
}

// convertEOF converts io.EOF to an error that wraps ErrFormat. It returns other errors unchanged.
func (in *input) convertEOF(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return malformed("it is cut off after %d bytes", in.offset)
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

// maxStringBytes bounds the length of a string, in bytes.
const maxStringBytes = 64 << 20

// readBytes reads n bytes, which are valid until the next read. n comes from the file and may be
// wrong. Therefore, bytes allocates memory for large results only as it reads them.
func (in *input) readBytes(n uint64) ([]byte, error) {
	if n > maxStringBytes {
		return nil, malformed("the string at byte %d has %d bytes, more than %d",
			in.offset, n, maxStringBytes)
	}
	if n <= uint64(in.r.Size()) {
		b, err := in.r.Peek(int(n))
		if err != nil {
			return nil, in.convertEOF(err)
		}
		_, _ = in.r.Discard(int(n)) // cannot fail: the bytes are buffered
		in.offset += int64(n)
		return b, nil
	}
	in.largeBuffer = in.largeBuffer[:0]
	for left := int(n); left > 0; {
		step := min(left, 1<<20)
		at := len(in.largeBuffer)
		in.largeBuffer = append(in.largeBuffer, make([]byte, step)...)
		if _, err := io.ReadFull(in.r, in.largeBuffer[at:]); err != nil {
			return nil, in.convertEOF(err)
		}
		in.offset += int64(step)
		left -= step
	}
	return in.largeBuffer, nil
}

// readUint reads an unsigned integer of 1, 2, 4 or 8 bytes.
func (in *input) readUint(size int) (uint64, error) {
	b, err := in.readBytes(uint64(size))
	if err != nil {
		return 0, err
	}
	var word [8]byte
	copy(word[:], b)
	return binary.LittleEndian.Uint64(word[:]), nil
}
