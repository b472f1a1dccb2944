package rendezvous

import (
	"errors"
	"io"
	"time"
)

// closingMark is the last thing that the store sends to ranks that have sent a greeting, if rank 0
// leaves. The store sends it without a request. A rank whose process was stopped may miss the
// announcement (IsStoreClosing), but it receives the mark when it continues.
const closingMark = "\xffthe store closes"

// errLeft means that the store has sent closingMark.
var errLeft = errors.New("the process that served it has left")

// tailReader keeps the last bytes that were read, up to the length of closingMark.
type tailReader struct {
	r    io.Reader
	tail []byte
}

func (t *tailReader) Read(b []byte) (int, error) {
	n, err := t.r.Read(b)
	lastBytes := b[max(0, n-len(closingMark)):n]
	t.tail = append(t.tail, lastBytes...)
	extraBytes := len(t.tail) - len(closingMark)
	if extraBytes > 0 {
		t.tail = append(t.tail[:0], t.tail[extraBytes:]...) // keeps only the end
	}

	return n, err
}

// drainTimeout bounds the time to read what a closed connection has received.
const drainTimeout = 100 * time.Millisecond

// drainToClosingMark reads what a failed connection has received, and reports whether this ends
// with closingMark. The connection cannot be used afterwards.
func (l *link) drainToClosingMark() bool {
	_ = l.conn.SetReadDeadline(time.Now().Add(drainTimeout))
	_, _ = io.Copy(io.Discard, io.LimitReader(l.decoder.r, maxValueBytes))
	return string(l.tail.tail) == closingMark
}
