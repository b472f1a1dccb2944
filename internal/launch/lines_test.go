package launch

import (
	"bytes"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
)

// step is a write of text by a rank. If text is delayEnd or rankExit, it is that event instead.
type step struct {
	rank int // 0 or 1
	text string
}

const (
	delayEnd = "\x00delay" // the rank has paused, so that its unterminated line is written
	rankExit = "\x00exit"  // the rank exits
)

// TestPartialLinesAreWritten checks the launcher's output for steps of two ranks. A prompt or a
// progress bar must appear before its line ends, but lines of different ranks must not be mixed.
// In want, "|" marks the end of each write.
func TestPartialLinesAreWritten(t *testing.T) {
	rows := map[string]struct {
		steps []step
		want  string
	}{
		"a prompt": {
			[]step{{0, "go on? "}, {0, delayEnd}, {0, "yes\n"}, {0, "next\n"}},
			"[0] go on? |yes\n|[0] next\n|",
		},
		"a line in parts stays whole": {
			[]step{{0, "a"}, {1, "one\n"}, {0, "b\n"}},
			"[1] one\n|[0] ab\n|",
		},
		"another rank's line terminates an unfinished line": {
			[]step{{0, "a"}, {0, delayEnd}, {1, "one\n"}, {0, "b\nc\n"}},
			"[0] a|\n|[1] one\n|[0] b\n[0] c\n|",
		},
		"a progress bar keeps its prefix": {
			[]step{{0, "\r1/2"}, {0, delayEnd}, {0, "\r2/2"}, {0, delayEnd}, {0, "\n"}},
			"\r[0] 1/2|\r[0] 2/2|\n|",
		},
		"a progress bar with a trailing carriage return": {
			[]step{{0, "1/2\r"}, {0, delayEnd}, {0, "2/2\r"}, {0, delayEnd}, {0, "\n"}},
			"[0] 1/2|\r[0] 2/2|\r\n|",
		},
		"two progress bars overwrite each other": {
			[]step{
				{0, "\r1/2"}, {0, delayEnd}, {1, "\r1/2"}, {1, delayEnd}, {0, "\r2/2\n"}, {1, "\n"},
			},
			"\r[0] 1/2|\r[1] 1/2|\r[0] 2/2\n|[1] \n|",
		},
		"a progress bar does not overwrite a prompt": {
			[]step{{0, "go on? "}, {0, delayEnd}, {1, "\r1/2"}, {1, delayEnd}},
			"[0] go on? |\n|\r[1] 1/2|",
		},
		"the exit of a rank terminates its line": {
			[]step{{0, "a"}, {0, delayEnd}, {0, rankExit}, {1, "b"}, {1, rankExit}, {1, rankExit}},
			"[0] a|\n|[1] b\n|",
		},
		"CR and LF in two writes": {
			[]step{{0, "a\r"}, {0, delayEnd}, {0, "\nb\n"}},
			"[0] a|\r\n[0] b\n|",
		},
	}
	for name, r := range rows {
		t.Run(name, func(t *testing.T) {
			if got := outputOf(r.steps); got != r.want {
				t.Errorf("got  %q\nwant %q", got, r.want)
			}
		})
	}
}

// outputOf returns the launcher's output for the given steps, with "|" after each write.
func outputOf(steps []step) string {
	var got strings.Builder
	s := &sink{mu: &sync.Mutex{}, delay: testTimeout, w: writerFunc(func(b []byte) (int, error) {
		got.Write(b)
		got.WriteByte('|')
		return len(b), nil
	})}
	writers := []*lineWriter{{sink: s, prefix: "[0] "}, {sink: s, prefix: "[1] "}} // by rank
	for _, step := range steps {
		l := writers[step.rank]
		switch step.text {
		case delayEnd:
			l.writeAfterDelay()
		case rankExit:
			l.flush()
		default:
			_, _ = l.Write([]byte(step.text))
		}
	}

	for _, l := range writers {
		l.stopTimerLocked() // No other goroutine uses l, so its lock is not needed.
	}

	return got.String()
}

// TestPromptIsWrittenBeforeAnswer starts ranks of which rank 0 asks "go on? ", without the end of
// the line, and waits for the answer. The launcher must write the prompt meanwhile.
func TestPromptIsWrittenBeforeAnswer(t *testing.T) {
	for name, omitPrefix := range map[string]bool{"prefixed": false, "plain": true} {
		t.Run(name, func(t *testing.T) {
			out := newTranscript()
			spec := newSpec("ask", 2, out)
			stdin, answer, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer stdin.Close()
			defer answer.Close()
			spec.Stdin, spec.OmitPrefix = stdin, omitPrefix
			done := startRun(testContext(t), spec)
			out.waitFor(t, 1, "go on? ")
			if _, err := io.WriteString(answer, "yes\n"); err != nil {
				t.Fatal(err)
			}

			if o := <-done; o.err != nil || o.Code != 0 {
				t.Fatalf("Run = %+v, want code 0", o)
			}
		})
	}
}

// TestIsSameOutput compares pairs of writers. Functions are never the same output, because Go
// cannot compare them.
func TestIsSameOutput(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	discard := writerFunc(io.Discard.Write)
	text, other := new(bytes.Buffer), new(bytes.Buffer)
	for name, c := range map[string]struct {
		a, b io.Writer
		want bool
	}{
		"one file":     {a: w, b: w, want: true},
		"two files":    {a: w, b: os.Stderr, want: false},
		"one function": {a: discard, b: discard, want: false},
		"one buffer":   {a: text, b: text, want: true},
		"two buffers":  {a: text, b: other, want: false},
	} {
		if got := isSameOutput(c.a, c.b); got != c.want {
			t.Errorf("isSameOutput of %s = %t, want %t", name, got, c.want)
		}
	}
}
