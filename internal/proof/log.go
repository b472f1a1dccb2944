package proof

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Log is what NCCL has said so far.
type Log struct {
	// Lines counts the lines of the log, whatever they are about.
	Lines int `json:"lines"`
	// Choices are the launches, in order.
	Choices []Choice `json:"choices"`
	// Warnings are NCCL's warnings, in order.
	Warnings []string `json:"warnings"`
}

// The marks after which a line's message begins.
const (
	infoMark = " NCCL INFO "
	warnMark = " NCCL WARN "
)

// maxLine is more bytes than any line that matters has: NCCL makes prefixes of up to 1 KiB.
const maxLine = 1 << 16

// Parse reads a log. A last line without an end is one that is still being written, and is left
// out.
func Parse(r io.Reader) (*Log, error) {
	l := &Log{}
	lines := bufio.NewReaderSize(r, maxLine)
	long := false // the line did not fit, and none that matters is that long
	for {
		line, err := lines.ReadSlice('\n')
		switch {
		case err == nil:
			l.Lines++
			if !long {
				l.add(string(line[:len(line)-1]))
			}
			long = false
		case errors.Is(err, bufio.ErrBufferFull):
			long = true
		case errors.Is(err, io.EOF):
			return l, nil
		default:
			return nil, fmt.Errorf("reading NCCL's log: %w", err)
		}
	}
}

func (l *Log) add(line string) {
	if _, message, ok := strings.Cut(line, warnMark); ok {
		l.Warnings = append(l.Warnings, message)
		return
	}
	_, message, ok := strings.Cut(line, infoMark)
	if !ok {
		return
	}
	if choice, ok := ParseChoice(message); ok {
		l.Choices = append(l.Choices, choice)
	}
}
