package launch

import (
	"bytes"
	"io"
	"os"
	"sync"
	"time"
)

const (
	// maxPending is the maximum size of the buffered part of a line. Longer lines are written in
	// parts.
	maxPending = 1 << 20
	// An unterminated line, such as a prompt or progress bar, is written after partialDelay.
	partialDelay = 100 * time.Millisecond
)

// sink writes the output of all ranks to one destination. After the first error, it discards all
// output, so that the ranks do not fail too.
type sink struct {
	// The sinks of one Run share mu, because they may write to the same terminal.
	mu     *sync.Mutex
	delay  time.Duration // time after which an unterminated line is written
	failed chan<- error  // receives the first error

	w   io.Writer // guarded by mu
	err error     // guarded by mu
	// unfinished is the output that wrote last, if its text did not end with a newline. Otherwise
	// it is nil. It is guarded by mu.
	unfinished *lineWriter
}

func (s *sink) write(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finishLine(nil, b)
	s.writeLocked(b)
}

func (s *sink) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *sink) writeLocked(b []byte) {
	if s.err != nil {
		return
	}
	if _, s.err = s.w.Write(b); s.err != nil {
		s.failed <- s.err
	}
}

// finishLine must be called before writer writes next. It ends the unfinished line of another
// output. If both are progress bars and next begins with \r, no newline is needed. The caller must
// hold s.mu.
func (s *sink) finishLine(writer *lineWriter, next []byte) {
	last := s.unfinished
	if last == nil || last == writer {
		return
	}
	s.unfinished = nil
	if !last.progressBar || next[0] != '\r' {
		last.progressBar = false
		s.writeLocked([]byte{'\n'})
	}
}

func sameFile(a, b io.Writer) bool {
	f, isFileA := a.(interface{ Stat() (os.FileInfo, error) })
	g, isFileB := b.(interface{ Stat() (os.FileInfo, error) })
	if !isFileA || !isFileB {
		return false
	}
	first, err := f.Stat()
	second, otherErr := g.Stat()
	return err == nil && otherErr == nil && os.SameFile(first, second)
}

// lineWriter forwards one output of a rank. It forwards complete lines immediately, and an
// unterminated line after a delay. It is safe for concurrent use and never returns an error.
type lineWriter struct {
	sink   *sink
	prefix string
	// sink.mu guards the following fields.

	// pending holds the unwritten part of the current line. An earlier part of the line has been
	// written if sink.unfinished is this output.
	pending     []byte
	progressBar bool
	timer       *time.Timer // runs while pending is not empty
	piece       []byte      // collects the bytes of one write to the sink
}

// Write passes all lines that b completes to the sink in one write.
func (l *lineWriter) Write(b []byte) (int, error) {
	l.sink.mu.Lock()
	defer l.sink.mu.Unlock()
	for rest := b; len(rest) > 0; {
		text, after, complete := bytes.Cut(rest, []byte{'\n'})
		if free := maxPending - len(l.pending); len(text) > free {
			text, after, complete = rest[:free], rest[free:], false
		}
		l.pending = append(l.pending, text...)
		switch {
		case complete:
			l.completeLine()
		case len(after) > 0:
			l.writePart()
		}
		rest = after
	}
	l.writePiece()
	if len(l.pending) > 0 && l.timer == nil {
		l.timer = time.AfterFunc(l.sink.delay, l.writePartial)
	}
	return len(b), nil
}

func (l *lineWriter) writePartial() {
	l.sink.mu.Lock()
	defer l.sink.mu.Unlock()
	l.stopTimer()
	l.writePart()
}

// writePart writes the pending part of a line. It keeps a trailing carriage return, because a
// newline may follow. The caller must hold sink.mu.
func (l *lineWriter) writePart() {
	text := bytes.TrimSuffix(l.pending, []byte{'\r'})
	if len(text) == 0 {
		return
	}
	l.addText(text)
	l.pending = l.pending[:copy(l.pending, l.pending[len(text):])]
	l.writePiece()
	l.sink.unfinished = l
}

// completeLine moves the pending part of a line to l.piece. The caller must hold sink.mu.
func (l *lineWriter) completeLine() {
	text := bytes.TrimSuffix(l.pending, []byte{'\r'})
	l.addText(text)
	l.piece = append(l.piece, l.pending[len(text):]...)
	l.piece = append(l.piece, '\n')
	l.pending, l.progressBar = l.pending[:0], false
	l.stopTimer()
	if l.sink.unfinished == l {
		l.sink.unfinished = nil
	}
}

// addText adds a part of a line to l.piece, with the prefix at the start of the line and after each
// carriage return. The caller must hold sink.mu.
func (l *lineWriter) addText(text []byte) {
	first, rest, returns := bytes.Cut(text, []byte{'\r'})
	if l.sink.unfinished != l && (len(first) > 0 || !returns) {
		l.piece = append(l.piece, l.prefix...)
	}
	l.piece = append(l.piece, first...)
	for returns {
		l.progressBar = true
		first, rest, returns = bytes.Cut(rest, []byte{'\r'})
		l.piece = append(l.piece, '\r')
		l.piece = append(l.piece, l.prefix...)
		l.piece = append(l.piece, first...)
	}
}

func (l *lineWriter) writePiece() {
	if len(l.piece) > 0 {
		l.sink.finishLine(l, l.piece)
		l.sink.writeLocked(l.piece)
		l.piece = l.piece[:0]
	}
}

func (l *lineWriter) stopTimer() {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
}

func (l *lineWriter) flush() {
	l.sink.mu.Lock()
	defer l.sink.mu.Unlock()
	if len(l.pending) > 0 || l.sink.unfinished == l {
		l.completeLine()
		l.writePiece()
	}
}
