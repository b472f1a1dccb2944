package launch

import (
	"bytes"
	"io"
	"os"
	"reflect"
	"sync"
	"time"
)

// The ranks of a job write to the same destination, such as a terminal. A rank has a lineWriter for
// its standard output, and one for its standard error. They keep lines of different ranks apart,
// and pass text to the sink of the destination. For example, the lineWriters of ranks 0 and 1 have
// the prefixes "[0] " and "[1] ":
//
//   - Rank 0 writes "loss" and then " 0.5\n". Its lineWriter keeps "loss" until the line is
//     complete. Then it writes "[0] loss 0.5\n".
//   - Rank 1 writes "name: " and waits for an answer, so no newline follows. After a delay, its
//     lineWriter writes "[1] name: ". The destination now has an unfinished line.
//   - Rank 0 writes "done\n". The unfinished line must not continue with this text, so the sink
//     first ends it. It writes "\n[0] done\n".
//   - Rank 1 writes "10%\r20%\r", a progress bar: a carriage return moves the cursor of a terminal
//     to the start of the line. Its lineWriter puts the prefix after each carriage return, too.

const (
	// maxPending is the maximum number of bytes of a line that a lineWriter keeps. A longer line is
	// written in parts.
	maxPending = 1 << 20
	// unterminatedDelay is the time after which a line without an end is written. The rest of a line
	// usually follows sooner.
	unterminatedDelay = 100 * time.Millisecond
)

// sink writes the output of all ranks to one destination. After an error, it discards output, so
// that the ranks do not fail.
type sink struct {
	// All sinks of one Run share mu, because they may write to the same terminal.
	mu     *sync.Mutex
	delay  time.Duration // unterminatedDelay; tests set a different one
	errors chan<- error  // receives the first error; its buffer has space for the error

	// Guarded by mu:
	w   io.Writer // the destination
	err error     // first error of w
	// unfinishedWriter is the lineWriter of the unfinished line, or nil if the output ends with a
	// newline.
	unfinishedWriter *lineWriter
}

// write writes a message of the launcher on a new line.
func (s *sink) write(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var launcher *lineWriter // nil, because the message comes from no rank
	s.endUnfinishedLineLocked(launcher, b)
	s.writeLocked(b)
}

// firstError returns the first error of the destination, or nil.
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

// endUnfinishedLineLocked is called before next writes text, which must not be empty. It ends the
// unfinished line with a newline, if the line is that of another lineWriter.
//
// The exception is a progress bar followed by text that begins with \r. The text replaces the
// progress bar, so no newline is needed.
func (s *sink) endUnfinishedLineLocked(next *lineWriter, text []byte) {
	last := s.unfinishedWriter
	if last == nil || last == next {
		return
	}

	s.unfinishedWriter = nil
	replacesBar := last.isProgressBar && text[0] == '\r'
	if !replacesBar {
		last.isProgressBar = false
		s.writeLocked([]byte{'\n'})
	}
}

// lineWriter forwards one output of a rank to a sink. It forwards complete lines at once, and a
// line without an end after a delay. It is safe for concurrent use. Write never returns an error.
type lineWriter struct {
	sink   *sink
	prefix string // put at the start of each line, such as "[3] "; may be empty
	// sink.mu guards the following fields.

	// pending is the part of the current line that has not been written. An earlier part has been
	// written if sink.unfinishedWriter is this lineWriter.
	pending       []byte
	isProgressBar bool        // whether the current line contains a carriage return
	timer         *time.Timer // calls writeAfterDelay; nil unless it is running
	batch         []byte      // collects text for one write to the sink; reused
}

// Write adds output of the rank. It passes all lines that b completes to the sink in one write. It
// keeps the rest for later.
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

// addLocked adds the first line of b to pending, or the part of it that fits, and returns the rest
// of b. If the line is complete, it moves pending to batch. If a part does not fit, it writes
// pending.
func (l *lineWriter) addLocked(b []byte) (rest []byte) {
	text, rest, isComplete := bytes.Cut(b, []byte{'\n'})
	freeBytes := maxPending - len(l.pending)
	isTooLong := len(text) > freeBytes
	if isTooLong {
		l.pending = append(l.pending, b[:freeBytes]...)
		l.writePendingLocked() // makes room for the rest
		return b[freeBytes:]
	}

	l.pending = append(l.pending, text...)
	if isComplete {
		l.addPendingLineLocked()
	}

	return rest
}

// writeAfterDelay writes the current line, which has no end yet.
func (l *lineWriter) writeAfterDelay() {
	l.sink.mu.Lock()
	defer l.sink.mu.Unlock()
	l.stopTimerLocked()
	l.writePendingLocked()
}

// stopTimerLocked stops the timer. If writeAfterDelay is already waiting for mu, it will write
// pending earlier than necessary, which does no harm.
func (l *lineWriter) stopTimerLocked() {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
}

// writePendingLocked writes pending as an unfinished line. It keeps a trailing carriage return: if
// a newline follows, the two end the line together.
func (l *lineWriter) writePendingLocked() {
	text := bytes.TrimSuffix(l.pending, []byte{'\r'})
	if len(text) == 0 {
		return
	}

	l.addTextLocked(text)
	keptBytes := copy(l.pending, l.pending[len(text):]) // 0 or 1
	l.pending = l.pending[:keptBytes]
	l.writeBatchLocked()
	l.sink.unfinishedWriter = l
}

// addPendingLineLocked moves pending to batch and ends the line. The caller must call
// writeBatchLocked before it unlocks mu.
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

// addTextLocked adds text of the current line to batch, with the prefix at the start of the line
// and after each carriage return.
func (l *lineWriter) addTextLocked(text []byte) {
	first, rest, hasReturn := bytes.Cut(text, []byte{'\r'})
	isLineStart := l.sink.unfinishedWriter != l
	startsWithReturn := len(first) == 0 && hasReturn // the loop adds the prefix
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

// writeBatchLocked passes batch to the sink.
func (l *lineWriter) writeBatchLocked() {
	if len(l.batch) > 0 {
		l.sink.endUnfinishedLineLocked(l, l.batch)
		l.sink.writeLocked(l.batch)
		l.batch = l.batch[:0]
	}
}

// flush writes the current line after the exit of the rank, and ends it.
func (l *lineWriter) flush() {
	l.sink.mu.Lock()
	defer l.sink.mu.Unlock()
	if len(l.pending) > 0 || l.sink.unfinishedWriter == l {
		l.addPendingLineLocked()
		l.writeBatchLocked()
	}
}

// isSameOutput reports whether two writers are the same pointer or write to the same file.
func isSameOutput(a, b io.Writer) bool {
	isPointer := reflect.ValueOf(a).Kind() == reflect.Pointer // == panics for some other kinds
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
