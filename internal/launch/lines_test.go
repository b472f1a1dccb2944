package launch

import (
	"bytes"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
)

// step is something that happens to the lineWriter of one of two ranks.
type step struct {
	rank   int // 0 or 1
	action func(l *lineWriter)
}

func write(rank int, text string) step {
	return step{rank: rank, action: func(l *lineWriter) {
		_, _ = l.Write([]byte(text)) // never fails
	}}
}

// expireTimer stands for a pause, after which the timer writes the rank's unfinished line.
func expireTimer(rank int) step {
	return step{rank: rank, action: (*lineWriter).writeAfterDelay}
}

func exit(rank int) step { return step{rank: rank, action: (*lineWriter).flush} }

// Prompts and progress bars appear before the line ends, but ranks do not share a line.
func TestPartialLinesAreWritten(t *testing.T) {
	for name, c := range map[string]struct {
		steps []step
		want  string // "|" marks the end of each write
	}{
		"a prompt": {
			steps: []step{write(0, "go on? "), expireTimer(0), write(0, "yes\n"), write(0, "next\n")},
			want:  "[0] go on? |yes\n|[0] next\n|",
		},
		"a line in parts stays whole": {
			steps: []step{write(0, "a"), write(1, "one\n"), write(0, "b\n")},
			want:  "[1] one\n|[0] ab\n|",
		},
		"another rank's line terminates an unfinished line": {
			steps: []step{write(0, "a"), expireTimer(0), write(1, "one\n"), write(0, "b\nc\n")},
			want:  "[0] a|\n|[1] one\n|[0] b\n[0] c\n|",
		},
		"a progress bar keeps its prefix": {
			steps: []step{
				write(0, "\r1/2"), expireTimer(0), write(0, "\r2/2"), expireTimer(0), write(0, "\n"),
			},
			want: "\r[0] 1/2|\r[0] 2/2|\n|",
		},
		"a progress bar with a trailing carriage return": {
			steps: []step{
				write(0, "1/2\r"), expireTimer(0), write(0, "2/2\r"), expireTimer(0), write(0, "\n"),
			},
			want: "[0] 1/2|\r[0] 2/2|\r\n|",
		},
		"two progress bars overwrite each other": {
			steps: []step{
				write(0, "\r1/2"), expireTimer(0), write(1, "\r1/2"), expireTimer(1),
				write(0, "\r2/2\n"), write(1, "\n"),
			},
			want: "\r[0] 1/2|\r[1] 1/2|\r[0] 2/2\n|[1] \n|",
		},
		"a progress bar does not overwrite a prompt": {
			steps: []step{write(0, "go on? "), expireTimer(0), write(1, "\r1/2"), expireTimer(1)},
			want:  "[0] go on? |\n|\r[1] 1/2|",
		},
		"the exit of a rank terminates its line once": {
			steps: []step{write(0, "a"), expireTimer(0), exit(0), write(1, "b"), exit(1), exit(1)},
			want:  "[0] a|\n|[1] b\n|",
		},
		"CR and LF in two writes": {
			steps: []step{write(0, "a\r"), expireTimer(0), write(0, "\nb\n")},
			want:  "[0] a|\r\n[0] b\n|",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := outputOf(c.steps); got != c.want {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func outputOf(steps []step) string {
	var output strings.Builder
	destination := writerFunc(func(b []byte) (int, error) {
		output.Write(b)
		output.WriteByte('|')
		return len(b), nil
	})
	const delay = testTimeout // never passes: expireTimer calls writeAfterDelay instead
	s := &sink{mu: &sync.Mutex{}, delay: delay, destination: destination}
	writers := []*lineWriter{{sink: s, prefix: "[0] "}, {sink: s, prefix: "[1] "}} // by rank
	for _, step := range steps {
		step.action(writers[step.rank])
	}

	for _, l := range writers {
		l.stopTimerLocked() // without mu, because no other goroutine uses l
	}

	return output.String()
}

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
			spec.Stdin = stdin
			spec.OmitPrefix = omitPrefix
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

func TestIsSameOutput(t *testing.T) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	defer writer.Close()
	discard := writerFunc(io.Discard.Write)
	bufferA := new(bytes.Buffer)
	bufferB := new(bytes.Buffer)
	for name, c := range map[string]struct {
		a, b io.Writer
		want bool
	}{
		"one file":     {a: writer, b: writer, want: true},
		"two files":    {a: writer, b: os.Stderr, want: false},
		"one function": {a: discard, b: discard, want: false}, // Go cannot compare functions.
		"one buffer":   {a: bufferA, b: bufferA, want: true},
		"two buffers":  {a: bufferA, b: bufferB, want: false},
	} {
		if got := isSameOutput(c.a, c.b); got != c.want {
			t.Errorf("isSameOutput of %s = %t, want %t", name, got, c.want)
		}
	}
}
