package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"time"

	"symmem/internal/sys"
)

// progressVariable makes rank 0 of verify write progress lines to standard error. verify sets it
// for its ranks if standard error is a terminal. Users can set it to get progress in logs.
const progressVariable = "SYMMEM_PROGRESS"

const (
	progressPrefix = "progress: " // begins each progress line
	progressEvery  = 100 * time.Millisecond
)

// newProgressLines returns a function that writes a progress line with a unit such as "steps", at
// intervals of at least progressEvery.
func newProgressLines(w io.Writer, unit string) func(done, all int) {
	var next time.Time
	return func(done, all int) {
		now := time.Now()
		if now.After(next) {
			next = now.Add(progressEvery)
			fmt.Fprintf(w, "%s%d of %d %s\n", progressPrefix, done, all, unit)
		}
	}
}

// progressCounter shows progress lines as a counter on one line of a terminal, and forwards other
// lines. Each Write must contain whole lines.
type progressCounter struct {
	terminal io.Writer
	isShown  bool // the last line of the terminal is the counter
}

const clearLine = "\r\x1b[K" // moves the cursor to the beginning of the line and clears the line

// Write implements io.Writer.
func (p *progressCounter) Write(b []byte) (int, error) {
	for line := range bytes.Lines(b) {
		text := string(line)
		isProgress := bytes.HasPrefix(line, []byte(progressPrefix))
		if isProgress {
			text = string(bytes.TrimSuffix(line, []byte("\n")))
		}

		if p.isShown {
			text = clearLine + text
		}

		p.isShown = isProgress
		if _, err := io.WriteString(p.terminal, text); err != nil {
			return 0, err
		}
	}

	return len(b), nil
}

// end clears the counter if it is shown.
func (p *progressCounter) end() {
	if p.isShown {
		_, _ = io.WriteString(p.terminal, clearLine)
		p.isShown = false
	}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && sys.IsTerminal(f)
}
