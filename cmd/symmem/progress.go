package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"time"

	"symmem/internal/sys"
)

// envProgress makes rank 0 of verify write its progress to standard error as lines: what verify
// asks of its ranks when its own standard error is a terminal, and what a log can have too.
const envProgress = "SYMMEM_PROGRESS"

const (
	progressPrefix = "progress: "
	// progressEvery is how often a person wants to read a number.
	progressEvery = 100 * time.Millisecond
)

// progressLines writes progress as lines, not more often than can be read. The first is written at
// once.
func progressLines(w io.Writer) func(done, all int) {
	var next time.Time
	return func(done, all int) {
		if now := time.Now(); now.After(next) {
			next = now.Add(progressEvery)
			fmt.Fprintf(w, "%s%d of %d steps\n", progressPrefix, done, all)
		}
	}
}

// progressCounter turns progress lines into one line of a terminal that counts. It takes whole
// lines, as a launch writes them, and passes others on.
type progressCounter struct {
	terminal io.Writer
	shown    bool
}

// clearLine moves to the start of a terminal's line and empties it.
const clearLine = "\r\x1b[K"

// Write implements io.Writer.
func (p *progressCounter) Write(b []byte) (int, error) {
	for line := range bytes.Lines(b) {
		text := string(line)
		counts := bytes.HasPrefix(line, []byte(progressPrefix))
		if counts {
			text = string(bytes.TrimSuffix(line, []byte("\n")))
		}
		if p.shown {
			text = clearLine + text
		}
		p.shown = counts
		if _, err := io.WriteString(p.terminal, text); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// end empties the line if it still counts.
func (p *progressCounter) end() {
	if p.shown {
		_, _ = io.WriteString(p.terminal, clearLine)
		p.shown = false
	}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && sys.IsTerminal(f)
}
