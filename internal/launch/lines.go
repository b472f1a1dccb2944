package launch

import (
	"bytes"
	"io"
	"os"
	"reflect"
	"sync"
	"time"
)

const (
	// maxPending is the maximum number of buffered bytes. A longer line is written in parts.
	maxPending = 1 << 20
	// unterminatedDelay is the time after which a line without an end, such as a prompt, is written.
	unterminatedDelay = 100 * time.Millisecond
)

// sink writes the output of all ranks to one destination. After an error, it discards output, so
// that the ranks do not fail.
type sink struct {
	// All sinks of one Run share mu, because they may write to the same terminal.
	mu     *sync.Mutex
	delay  time.Duration // see unterminatedDelay
	errors chan<- error  // receives the first error

	// Guarded by mu:
	w   io.Writer // the destination
	err error     // first error of w
	// unfinishedWriter is the lineWriter that wrote last, or nil if the output ends with a newline.
	unfinishedWriter *lineWriter
}

// write writes b on a new line.
func (s *sink) write(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endUnfinishedLineLocked(nil, b)
	s.writeLocked(b)
}

func (s *sink) firstError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// writeLocked writes b unless an earlier write has failed. The caller must hold mu, as for all
// functions whose names end with Locked.
func (s *sink) writeLocked(b []byte) {
	if s.err != nil {
		return
	}
	_, s.err = s.w.Write(b)
	if s.err != nil {
		s.errors <- s.err
	}
}

// endUnfinishedLineLocked writes a newline if text, which writer writes next, would otherwise
// continue the line of another lineWriter. It writes none between a progress bar and text that
// begins with \r, because the text then replaces the progress bar.
func (s *sink) endUnfinishedLineLocked(writer *lineWriter, text []byte) {
	last := s.unfinishedWriter
	if last == nil || last == writer {
		return
	}
	s.unfinishedWriter = nil
	if !last.isProgressBar || text[0] != '\r' {
		last.isProgressBar = false
		s.writeLocked([]byte{'\n'})
	}
}

// isSameOutput reports whether two writers are the same pointer or write to the same file.
func isSameOutput(a, b io.Writer) bool {
	isPointer := reflect.ValueOf(a).Kind() == reflect.Pointer // == panics for some other kinds
	if isPointer && a == b {
		return true
	}
	f, isFileA := a.(interface{ Stat() (os.FileInfo, error) })
	g, isFileB := b.(interface{ Stat() (os.FileInfo, error) })
	if !isFileA || !isFileB {
		return false
	}
	first, err := f.Stat()
	second, otherErr := g.Stat()
	return err == nil && otherErr == nil && os.SameFile(first, second)
}

// lineWriter forwards one output of a rank: complete lines at once, and others after a delay. It
// is safe for concurrent use and never returns an error.
type lineWriter struct {
	sink   *sink
	prefix string
	// sink.mu guards the following fields.

	// pending is the unwritten part of the current line. An earlier part has been written if
	// sink.unfinishedWriter is this lineWriter.
	pending       []byte
	isProgressBar bool        // the current line contains a carriage return
	timer         *time.Timer // calls writeAfterDelay; nil unless it is running
	batch         []byte      // bytes of the next write to the sink
}

// Write adds output of the rank. It passes all lines that b completes to the sink in one write,
// and keeps the rest for later.
func (l *lineWriter) Write(b []byte) (int, error) {
	l.sink.mu.Lock()
	defer l.sink.mu.Unlock()
	for rest := b; len(rest) > 0; {
		text, after, isComplete := bytes.Cut(rest, []byte{'\n'})
		if free := maxPending - len(l.pending); len(text) > free {
			text, after, isComplete = rest[:free], rest[free:], false
		}
		l.pending = append(l.pending, text...)
		switch {
		case isComplete:
			l.addPendingLineLocked()
		case len(after) > 0:
			l.writePendingLocked()
		}
		rest = after
	}
	l.writeBatchLocked()
	if len(l.pending) > 0 && l.timer == nil {
		l.timer = time.AfterFunc(l.sink.delay, l.writeAfterDelay)
	}
	return len(b), nil
}

// writeAfterDelay writes an unterminated line.
func (l *lineWriter) writeAfterDelay() {
	l.sink.mu.Lock()
	defer l.sink.mu.Unlock()
	l.stopTimerLocked()
	l.writePendingLocked()
}

// writePendingLocked writes the pending part of an unterminated line, except a trailing carriage
// return, because a newline may follow.
func (l *lineWriter) writePendingLocked() {
	text := bytes.TrimSuffix(l.pending, []byte{'\r'})
	if len(text) == 0 {
		return
	}
	l.addTextLocked(text)
	l.pending = l.pending[:copy(l.pending, l.pending[len(text):])]
	l.writeBatchLocked()
	l.sink.unfinishedWriter = l
}

// addPendingLineLocked moves l.pending to l.batch and ends the line.
func (l *lineWriter) addPendingLineLocked() {
	text := bytes.TrimSuffix(l.pending, []byte{'\r'})
	l.addTextLocked(text)
	l.batch = append(l.batch, l.pending[len(text):]...)
	l.batch = append(l.batch, '\n')
	l.pending, l.isProgressBar = l.pending[:0], false
	l.stopTimerLocked()
	if l.sink.unfinishedWriter == l {
		l.sink.unfinishedWriter = nil
	}
}

// addTextLocked adds text of the current line to l.batch, with the prefix at the start of the line
// and after each carriage return.
func (l *lineWriter) addTextLocked(text []byte) {
	first, rest, hasReturn := bytes.Cut(text, []byte{'\r'})
	if l.sink.unfinishedWriter != l && (len(first) > 0 || !hasReturn) {
		l.batch = append(l.batch, l.prefix...)
	}
	l.batch = append(l.batch, first...)
	for hasReturn {
		l.isProgressBar = true
		first, rest, hasReturn = bytes.Cut(rest, []byte{'\r'})
		l.batch = append(l.batch, '\r')
		l.batch = append(l.batch, l.prefix...)
		l.batch = append(l.batch, first...)
	}
}

// writeBatchLocked passes l.batch to the sink.
func (l *lineWriter) writeBatchLocked() {
	if len(l.batch) > 0 {
		l.sink.endUnfinishedLineLocked(l, l.batch)
		l.sink.writeLocked(l.batch)
		l.batch = l.batch[:0]
	}
}

func (l *lineWriter) stopTimerLocked() {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
}

// flush ends and writes an unterminated line after the exit of the rank.
func (l *lineWriter) flush() {
	l.sink.mu.Lock()
	defer l.sink.mu.Unlock()
	if len(l.pending) > 0 || l.sink.unfinishedWriter == l {
		l.addPendingLineLocked()
		l.writeBatchLocked()
	}
}
