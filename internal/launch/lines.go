package launch

import (
	"bytes"
	"io"
	"sync"
)

// maxLine is where a line without end is cut. The rest goes on as a line of its own.
const maxLine = 64 << 10

// sink is where the lines of all ranks meet. After its first error it drops what comes, so that
// no rank is killed by a pipe that nobody reads.
type sink struct {
	// mu is shared by the sinks of one Run, as both may be the same terminal.
	mu *sync.Mutex
	// w and err are guarded by mu.
	w   io.Writer
	err error
}

func (s *sink) write(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		_, s.err = s.w.Write(b)
	}
}

// lines cuts what one rank writes to one of its outputs into whole lines. It is used by one
// goroutine at a time, and never fails.
type lines struct {
	sink   *sink
	prefix string
	// partial is the start of a line whose end has not come.
	partial []byte
	// whole is a buffer for what one Write hands on.
	whole []byte
}

// Write implements io.Writer. All lines that end in b go out in one piece.
func (l *lines) Write(b []byte) (int, error) {
	l.whole = l.whole[:0]
	for rest := b; len(rest) > 0; {
		text, after, whole := bytes.Cut(rest, []byte{'\n'})
		if room := maxLine - len(l.partial); len(text) > room {
			text, after, whole = rest[:room], rest[room:], true
		}
		l.partial = append(l.partial, text...)
		if whole {
			l.end()
		}
		rest = after
	}
	if len(l.whole) > 0 {
		l.sink.write(l.whole)
	}
	return len(b), nil
}

// end moves the partial line to those that are whole.
func (l *lines) end() {
	l.whole = append(l.whole, l.prefix...)
	l.whole = append(l.whole, l.partial...)
	l.whole = append(l.whole, '\n')
	l.partial = l.partial[:0]
}

// flush hands on a last line without an end, and gives it one.
func (l *lines) flush() {
	if len(l.partial) == 0 {
		return
	}
	l.whole = l.whole[:0]
	l.end()
	l.sink.write(l.whole)
}
