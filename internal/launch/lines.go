package launch

import (
	"bytes"
	"io"
	"os"
	"reflect"
	"slices"
	"sync"
	"time"
)

// lineWriter forwards the standard output or standard error of one rank (a process of a job) to a
// sink, which all ranks share. If a rank writes "loss" and then " 0.5\n", the sink gets both parts
// together, so that the lines of different ranks do not mix.
//
// After sink.delay, an incomplete line, such as a prompt, is written without its newline. The
// lineWriter is then the sink's lineOwner. Before text of another rank, the sink adds a newline.
type lineWriter struct {
	sink   *sink
	prefix string // such as "[3] ", or empty

	// Guarded by sink.mu. Callers of functions whose names end in Locked hold it.
	pending   []byte      // part of the current line that is not in batch yet
	hasReturn bool        // the current line contains "\r", as progress bars do
	timer     *time.Timer // calls writeAfterDelay; nil if none is running
	batch     []byte      // prefixed text for the next write to the sink
}

// maxPending limits the bytes in pending. A longer line is written in parts.
const maxPending = 1 << 20

// Write passes all complete lines to the sink in one write. It never returns an error.
func (l *lineWriter) Write(b []byte) (int, error) {
	l.sink.mu.Lock()
	defer l.sink.mu.Unlock()
	for rest := b; len(rest) > 0; {
		rest = l.addLineLocked(rest)
	}

	l.writeBatchLocked()
	if len(l.pending) > 0 && l.timer == nil {
		l.timer = time.AfterFunc(l.sink.delay, l.writeAfterDelay)
	}

	return len(b), nil
}

// addLineLocked moves the first line of b to batch or, if incomplete, to pending. It returns the
// rest of b. It writes a line that is longer than maxPending.
func (l *lineWriter) addLineLocked(b []byte) (rest []byte) {
	text, rest, isComplete := bytes.Cut(b, []byte{'\n'})
	freeBytes := maxPending - len(l.pending)
	if len(text) > freeBytes {
		l.pending = append(l.pending, b[:freeBytes]...)
		l.writePendingLocked()
		return b[freeBytes:]
	}

	l.pending = append(l.pending, text...)
	if isComplete {
		l.endLineLocked()
	}

	return rest
}

// endLineLocked moves pending and a newline to batch.
func (l *lineWriter) endLineLocked() {
	text := bytes.TrimSuffix(l.pending, []byte{'\r'})
	lineEnd := l.pending[len(text):] // "\r" or empty
	l.addTextLocked(text)
	l.batch = append(l.batch, lineEnd...)
	l.batch = append(l.batch, '\n')
	l.pending = l.pending[:0]
	l.hasReturn = false
	l.stopTimerLocked()
	if l.sink.lineOwner == l {
		l.sink.lineOwner = nil
	}
}

func (l *lineWriter) writeAfterDelay() {
	l.sink.mu.Lock()
	defer l.sink.mu.Unlock()
	l.stopTimerLocked()
	l.writePendingLocked()
}

// stopTimerLocked stops the timer. If writeAfterDelay is already waiting for mu, it may write the
// next line early, which is harmless.
func (l *lineWriter) stopTimerLocked() {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
}

// writePendingLocked writes an incomplete line. A trailing "\r" stays in pending, because it may be
// the start of "\r\n".
func (l *lineWriter) writePendingLocked() {
	text := bytes.TrimSuffix(l.pending, []byte{'\r'})
	if len(text) == 0 {
		return
	}

	l.addTextLocked(text)
	l.pending = slices.Delete(l.pending, 0, len(text))
	l.writeBatchLocked()
	l.sink.lineOwner = l
}

// addTextLocked adds a part of the current line to batch. It inserts the prefix at the start of the
// line and after each carriage return.
func (l *lineWriter) addTextLocked(text []byte) {
	isPartWritten := l.sink.lineOwner == l
	startsWithReturn := bytes.HasPrefix(text, []byte{'\r'})
	if !isPartWritten && !startsWithReturn {
		l.batch = append(l.batch, l.prefix...)
	}

	for {
		segment, rest, isReturnNext := bytes.Cut(text, []byte{'\r'})
		l.batch = append(l.batch, segment...)
		if !isReturnNext {
			return
		}

		l.hasReturn = true
		l.batch = append(l.batch, '\r')
		l.batch = append(l.batch, l.prefix...)
		text = rest
	}
}

func (l *lineWriter) writeBatchLocked() {
	if len(l.batch) > 0 {
		l.sink.writeLocked(l, l.batch)
		l.batch = l.batch[:0]
	}
}

// flush completes an incomplete line with a newline, after the rank has exited.
func (l *lineWriter) flush() {
	l.sink.mu.Lock()
	defer l.sink.mu.Unlock()
	isPartWritten := l.sink.lineOwner == l
	if len(l.pending) > 0 || isPartWritten {
		l.endLineLocked()
		l.writeBatchLocked()
	}
}

// sink writes the output of all ranks to one destination. After a write error, it discards further
// output, so that the ranks do not fail.
type sink struct {
	mu     *sync.Mutex   // shared by the sinks of a job, which may write to the same terminal
	delay  time.Duration // until a lineWriter writes an incomplete line
	errors chan<- error  // receives the first error; buffered

	// Guarded by mu:
	destination io.Writer
	err         error       // first error of destination
	lineOwner   *lineWriter // has written the last line without a newline; or nil
}

// writeMessage writes a line of the launcher.
func (s *sink) writeMessage(line []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeLocked(nil, line)
}

func (s *sink) firstError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// writeLocked writes text of l, or of the launcher if l is nil. If another lineWriter owns the last
// line, the text starts a new line or, after "\r", overwrites the owner's progress bar.
func (s *sink) writeLocked(l *lineWriter, text []byte) {
	owner := s.lineOwner
	if owner != nil && owner != l {
		s.lineOwner = nil
		overwritesBar := owner.hasReturn && text[0] == '\r'
		if !overwritesBar {
			owner.hasReturn = false
			s.forwardLocked([]byte{'\n'})
		}
	}

	s.forwardLocked(text)
}

func (s *sink) forwardLocked(b []byte) {
	if s.err != nil {
		return
	}

	_, s.err = s.destination.Write(b)
	if s.err != nil {
		s.errors <- s.err
	}
}

// isSameOutput reports whether two writers are equal pointers or write to the same file.
func isSameOutput(a, b io.Writer) bool {
	// The comparison of other types, such as functions, may panic.
	isPointer := reflect.ValueOf(a).Kind() == reflect.Pointer
	if isPointer && a == b {
		return true
	}

	type statter interface{ Stat() (os.FileInfo, error) } // implemented by *os.File
	fileA, isFileA := a.(statter)
	fileB, isFileB := b.(statter)
	if !isFileA || !isFileB {
		return false
	}

	infoA, errA := fileA.Stat()
	infoB, errB := fileB.Stat()
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}
