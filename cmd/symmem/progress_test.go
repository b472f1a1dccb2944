package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

func TestCounterUsesOneLine(t *testing.T) {
	var terminal bytes.Buffer
	c := &progressCounter{terminal: &terminal}
	for _, lines := range []string{
		"progress: 1 of 3 steps\n", "progress: 2 of 3 steps\n[rank 1] trouble\n",
		"progress: 3 of 3 steps\n",
	} {
		if n, err := io.WriteString(c, lines); n != len(lines) || err != nil {
			t.Fatalf("WriteString = %d, %v; want %d", n, err, len(lines))
		}
	}

	c.end()
	c.end()
	want := "progress: 1 of 3 steps" + clearLine + "progress: 2 of 3 steps" + clearLine +
		"[rank 1] trouble\n" + "progress: 3 of 3 steps" + clearLine
	if terminal.String() != want {
		t.Fatalf("got %q, want %q", terminal.String(), want)
	}
}

func TestProgressNeedsTerminalOrVariable(t *testing.T) {
	if isTerminal(&bytes.Buffer{}) || isTerminal(io.Discard) {
		t.Error("isTerminal = true for a buffer, want false")
	}

	t.Setenv(progressVariable, "")
	if newProgress(0, &bytes.Buffer{}) != nil {
		t.Error("progressFunc returned a function without a terminal; want nil")
	}

	t.Setenv(progressVariable, "lines")
	if newProgress(1, &bytes.Buffer{}) != nil {
		t.Error("progressFunc returned a function for rank 1; want nil")
	}

	var log bytes.Buffer
	newProgress(0, &log)(5, 7)
	if !strings.HasPrefix(log.String(), "progress: 5 of 7 ") {
		t.Errorf("first progress line = %q; want 5 of 7", log.String())
	}
}
