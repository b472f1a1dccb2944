package launch

import (
	"bytes"
	"io"
	"os"
	"reflect"
	"sync"
	"time"
)

// The processes of a job, called ranks, share a destination, such as a terminal. Their lines must
// not mix: if a rank writes "loss" and then " 0.5\n", its lineWriter passes both parts to the sink
// together. No newline follows a prompt such as "name: ". A timer therefore writes "[1] name: "
// after 100 ms, and the sink writes a newline before the next line of another rank.

const (
	maxPending        = 1 << 20 // bytes; a longer line is written in parts
	unterminatedDelay = 100 * time.Millisecond
)

// sink writes the output of all ranks to one destination. After a write error, it discards further
// output, so that the ranks do not fail.
type sink struct {
	mu     *sync.Mutex   // shared by all sinks of a Run, which may write to the same terminal
	delay  time.Duration // unterminatedDelay, except in tests
	errors chan<- error  // receives at most one error; buffered, so that sending does not block

	// Guarded by mu:
	destination      io.Writer
	err              error       // first error of destination
	unfinishedWriter *lineWriter // has written a line without a newline; or nil
}

// writeMessage writes a line of the launcher itself.
func (s *sink) writeMessage(line []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var noRank *lineWriter
	s.endUnfinishedLineLocked(noRank, line)
	s.writeLocked(line)
}

func (s *sink) firstError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// writeLocked discards b if an earlier write has failed. The caller of a function whose name ends
// in Locked holds mu.
func (s *sink) writeLocked(b []byte) {
	if s.err != nil {
		return
	}

	_, s.err = s.destination.Write(b)
	if s.err != nil {
		s.errors <- s.err
	}
}

// endUnfinishedLineLocked prepares for a write of nextText by next. If another lineWriter has left
// a line unfinished, it writes a newline first, unless nextText overwrites a progress bar. nextText
// must not be empty.
func (s *sink) endUnfinishedLineLocked(next *lineWriter, nextText []byte) {
	last := s.unfinishedWriter
	if last == nil || last == next {
		return
	}

	s.unfinishedWriter = nil
	overwritesBar := last.isProgressBar && nextText[0] == '\r'
	if overwritesBar {
		return
	}

	last.isProgressBar = false // The next text of last starts a new line.
	s.writeLocked([]byte{'\n'})
}

// lineWriter forwards the standard output or standard error of one rank to a sink. It is safe for
// concurrent use.
type lineWriter struct {
	sink   *sink
	prefix string // such as "[3] ", or empty

	// Guarded by sink.mu:
	pending       []byte      // current line, except the part that was written
	isProgressBar bool        // the current line contains a carriage return
	timer         *time.Timer // calls writeAfterDelay; nil if none is running
	batch         []byte      // prefixed text for the next write to the sink
}

// Write passes all complete lines to the sink in one write, and keeps an incomplete line for later.
// It never returns an error.
func (l *lineWriter) Write(b []byte) (int, error) {
	l.sink.mu.Lock()
	defer l.sink.mu.Unlock()
	for rest := b; len(rest) > 0; {
		rest = l.consumeLineLocked(rest)
	}

	l.writeBatchLocked()
	if len(l.pending) > 0 && l.timer == nil {
		l.timer = time.AfterFunc(l.sink.delay, l.writeAfterDelay)
	}

	return len(b), nil
}

// consumeLineLocked adds the first line of b, or a part of a line that is too long, and returns the
// rest of b.
func (l *lineWriter) consumeLineLocked(b []byte) (rest []byte) {
	text, rest, hasNewline := bytes.Cut(b, []byte{'\n'})
	freeBytes := maxPending - len(l.pending)
	if len(text) > freeBytes {
		l.pending = append(l.pending, b[:freeBytes]...)
		l.writeUnfinishedLineLocked() // makes room in pending
		return b[freeBytes:]
	}

	l.pending = append(l.pending, text...)
	if hasNewline {
		l.endLineLocked()
	}

	return rest
}

func (l *lineWriter) writeAfterDelay() {
	l.sink.mu.Lock()
	defer l.sink.mu.Unlock()
	l.stopTimerLocked()
	l.writeUnfinishedLineLocked()
}

// stopTimerLocked does not stop a call of writeAfterDelay that already waits for mu. This call may
// write the next line early, which is harmless.
func (l *lineWriter) stopTimerLocked() {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
}

// writeUnfinishedLineLocked writes pending before a newline has arrived. A trailing carriage return
// stays in pending, because it may be the start of "\r\n".
func (l *lineWriter) writeUnfinishedLineLocked() {
	text := bytes.TrimSuffix(l.pending, []byte{'\r'})
	if len(text) == 0 {
		return
	}

	l.addTextLocked(text)
	l.pending = append(l.pending[:0], l.pending[len(text):]...) // "\r" or empty
	l.writeBatchLocked()
	l.sink.unfinishedWriter = l
}

// endLineLocked moves pending and a newline to batch. The caller must call writeBatchLocked before
// it unlocks mu.
func (l *lineWriter) endLineLocked() {
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

// addTextLocked adds a part of the current line to batch. It inserts the prefix at the start of the
// line and after each carriage return.
func (l *lineWriter) addTextLocked(text []byte) {
	isLineStart := l.sink.unfinishedWriter != l
	startsWithReturn := bytes.HasPrefix(text, []byte{'\r'}) // so the loop inserts the prefix
	if isLineStart && !startsWithReturn {
		l.batch = append(l.batch, l.prefix...)
	}

	for {
		segment, rest, hasReturn := bytes.Cut(text, []byte{'\r'})
		l.batch = append(l.batch, segment...)
		if !hasReturn {
			return
		}

		l.isProgressBar = true
		l.batch = append(l.batch, '\r')
		l.batch = append(l.batch, l.prefix...)
		text = rest
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
	hasUnfinishedLine := l.sink.unfinishedWriter == l
	if len(l.pending) > 0 || hasUnfinishedLine {
		l.endLineLocked()
		l.writeBatchLocked()
	}
}

// isSameOutput reports whether two writers are equal pointers or write to the same file.
func isSameOutput(a, b io.Writer) bool {
	// Pointers are comparable, whereas the comparison of other writers may panic.
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
