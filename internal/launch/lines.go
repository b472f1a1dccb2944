package launch

import (
	"bytes"
	"io"
	"os"
	"reflect"
	"sync"
	"time"
)

// The processes of a job, called ranks, share a sink, such as a terminal. The lineWriter of a rank
// holds back "loss" until the rank adds " 0.5\n". If no newline follows for 100 ms, such as after
// the prompt "name: ", it leaves "[1] name: " unfinished. The next line from another rank then
// appears as "\n[0] loss 0.5\n".

const (
	maxPending        = 1 << 20 // bytes after which a line is written in parts
	unterminatedDelay = 100 * time.Millisecond
)

// sink writes the output of all ranks to one destination. After an error, it discards output, so
// that the ranks do not fail.
type sink struct {
	mu     *sync.Mutex   // shared by all sinks of a Run, which may write to the same terminal
	delay  time.Duration // unterminatedDelay, except in tests
	errors chan<- error  // receives the first error; has a free buffer slot for it

	// Guarded by mu:
	w                io.Writer
	err              error       // first error of w
	unfinishedWriter *lineWriter // writer of the unfinished line, or nil after a newline
}

// write writes a message of the launcher on a new line.
func (s *sink) write(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var launcher *lineWriter // nil, because the launcher writes whole lines
	s.endUnfinishedLineLocked(launcher, b)
	s.writeLocked(b)
}

func (s *sink) firstError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// writeLocked writes b unless an earlier write has failed. The suffix Locked means that the caller
// holds mu.
func (s *sink) writeLocked(b []byte) {
	if s.err != nil {
		return
	}

	_, s.err = s.w.Write(b)
	if s.err != nil {
		s.errors <- s.err
	}
}

// endUnfinishedLineLocked ends the unfinished line of another lineWriter before next writes text,
// unless text overwrites a progress bar. text must not be empty.
func (s *sink) endUnfinishedLineLocked(next *lineWriter, text []byte) {
	last := s.unfinishedWriter
	if last == nil || last == next {
		return
	}

	s.unfinishedWriter = nil
	overwritesBar := last.isProgressBar && text[0] == '\r'
	if overwritesBar {
		return
	}

	last.isProgressBar = false
	s.writeLocked([]byte{'\n'})
}

// lineWriter forwards the standard output or standard error of one rank to a sink. It is safe for
// concurrent use.
type lineWriter struct {
	sink   *sink
	prefix string // such as "[3] ", or empty

	// Guarded by sink.mu:
	pending       []byte      // unwritten part of the current line
	isProgressBar bool        // the current line contains a carriage return
	timer         *time.Timer // calls writeAfterDelay; nil if stopped
	batch         []byte      // text for the next write to the sink
}

// Write passes all complete lines to the sink in one write, and keeps the rest for later. It never
// returns an error.
func (l *lineWriter) Write(b []byte) (int, error) {
	l.sink.mu.Lock()
	defer l.sink.mu.Unlock()
	for rest := b; len(rest) > 0; {
		rest = l.addLocked(rest)
	}

	l.writeBatchLocked()
	if len(l.pending) > 0 && l.timer == nil {
		l.timer = time.AfterFunc(l.sink.delay, l.writeAfterDelay)
	}

	return len(b), nil
}

// addLocked adds the first line of b, or as much as fits into pending, and returns the rest of b.
func (l *lineWriter) addLocked(b []byte) (rest []byte) {
	text, rest, isComplete := bytes.Cut(b, []byte{'\n'})
	freeBytes := maxPending - len(l.pending)
	isTooLong := len(text) > freeBytes
	if isTooLong {
		l.pending = append(l.pending, b[:freeBytes]...)
		l.writePendingLocked() // makes room in pending
		return b[freeBytes:]
	}

	l.pending = append(l.pending, text...)
	if isComplete {
		l.addPendingLineLocked()
	}

	return rest
}

func (l *lineWriter) writeAfterDelay() {
	l.sink.mu.Lock()
	defer l.sink.mu.Unlock()
	l.stopTimerLocked()
	l.writePendingLocked()
}

// stopTimerLocked may come too late for a writeAfterDelay that waits for mu. The next line is then
// written early, which does no harm.
func (l *lineWriter) stopTimerLocked() {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
}

// writePendingLocked writes pending as an unfinished line. It keeps a trailing carriage return,
// which may be the start of "\r\n".
func (l *lineWriter) writePendingLocked() {
	text := bytes.TrimSuffix(l.pending, []byte{'\r'})
	if len(text) == 0 {
		return
	}

	l.addTextLocked(text)
	heldBack := copy(l.pending, l.pending[len(text):]) // 0 or 1 byte
	l.pending = l.pending[:heldBack]
	l.writeBatchLocked()
	l.sink.unfinishedWriter = l
}

// addPendingLineLocked moves pending to batch as a complete line. Call writeBatchLocked before
// unlocking mu.
func (l *lineWriter) addPendingLineLocked() {
	text := bytes.TrimSuffix(l.pending, []byte{'\r'})
	lineEnd := l.pending[len(text):] // "\r" or empty
	l.addTextLocked(text)
	l.batch = append(l.batch, lineEnd...)
	l.batch = append(l.batch, '\n')
	l.pending = l.pending[:0]
	l.isProgressBar = false
	l.stopTimerLocked()
	if l.sink.unfinishedWriter == l {
		l.sink.unfinishedWriter = nil
	}
}

// addTextLocked adds text of the current line to batch. A prefix precedes the line and follows each
// carriage return.
func (l *lineWriter) addTextLocked(text []byte) {
	first, rest, hasReturn := bytes.Cut(text, []byte{'\r'})
	isLineStart := l.sink.unfinishedWriter != l
	startsWithReturn := hasReturn && len(first) == 0 // so the loop adds the prefix
	if isLineStart && !startsWithReturn {
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

func (l *lineWriter) writeBatchLocked() {
	if len(l.batch) == 0 {
		return
	}

	l.sink.endUnfinishedLineLocked(l, l.batch)
	l.sink.writeLocked(l.batch)
	l.batch = l.batch[:0]
}

// flush ends the current line after the rank has exited.
func (l *lineWriter) flush() {
	l.sink.mu.Lock()
	defer l.sink.mu.Unlock()
	if len(l.pending) > 0 || l.sink.unfinishedWriter == l {
		l.addPendingLineLocked()
		l.writeBatchLocked()
	}
}

// isSameOutput reports whether two writers are equal pointers or the same file.
func isSameOutput(a, b io.Writer) bool {
	isPointer := reflect.ValueOf(a).Kind() == reflect.Pointer // Comparing uncomparable types panics.
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
