package rendezvous

import (
	"errors"
	"io"
	"time"
)

// closingMark is the last thing that the store sends to ranks that have sent a greeting, if rank 0
// leaves. It needs no request, so a rank that was stopped for so long that it missed the
// announcement (IsStoreClosing) receives it when it continues.
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
	t.tail = append(t.tail, b[max(0, n-len(closingMark)):n]...)
	if extra := len(t.tail) - len(closingMark); extra > 0 {
		t.tail = append(t.tail[:0], t.tail[extra:]...)
	}
	return n, err
}

// drainTimeout bounds the time to read what a closed connection has received.
const drainTimeout = 100 * time.Millisecond

// hasClosingMark reports whether what a failed connection has received ends with closingMark.
func (l *link) hasClosingMark() bool {
	_ = l.conn.SetReadDeadline(time.Now().Add(drainTimeout))
	_, _ = io.Copy(io.Discard, io.LimitReader(l.decoder.r, maxValueBytes))
	return string(l.tail.tail) == closingMark
}
