package proof

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"
)

// The logs in testdata are printed by NCCL's own format strings of each version; go test -rewrite
// writes the answers.
//
//	parse   read the log of the input
//	prove   answer for lines of a collective and bytes, by the log before
func TestLogsOfEachVersion(t *testing.T) {
	datadriven.Walk(t, "testdata/logs", func(t *testing.T, path string) {
		var log *Log
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			switch d.Cmd {
			case "parse":
				var err error
				if log, err = Parse(strings.NewReader(d.Input + "\n")); err != nil {
					t.Fatal(err)
				}
				return describe(log)
			case "prove":
				return answers(t, log, d.Input)
			}
			t.Fatalf("unknown command %q", d.Cmd)
			return ""
		})
	})
}

func describe(l *Log) string {
	var b strings.Builder
	fmt.Fprintf(&b, "lines %d\n", l.Lines)
	for _, c := range l.Choices {
		fmt.Fprintf(&b, "%s %d B: %v, %d channels, %d threads, %d works\n",
			c.Collective, c.Bytes, &c, c.Channels, c.Threads, c.Works)
	}
	for _, w := range l.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", w)
	}
	return b.String()
}

func answers(t *testing.T, l *Log, input string) string {
	t.Helper()
	var calls []Call
	for line := range strings.Lines(input) {
		name, count, _ := strings.Cut(strings.TrimSpace(line), " ")
		bytes, err := strconv.ParseInt(count, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		calls = append(calls, Call{name, bytes})
	}
	var b strings.Builder
	for _, a := range l.Prove(calls...) {
		verdict := "not windowed"
		if a.Windowed() {
			verdict = "windowed"
		}
		fmt.Fprintf(&b, "%-12s %v\n", verdict, a)
	}
	return b.String()
}

func TestALineThatIsStillBeingWrittenIsLeftOut(t *testing.T) {
	whole := "h:1:1 [0] NCCL INFO AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}"
	l, err := Parse(strings.NewReader(whole + "\n" + whole))
	if err != nil || len(l.Choices) != 1 {
		t.Errorf("%d choices, error %v; want 1", len(l.Choices), err)
	}
}

func TestALineWithoutEndDoesNotHideTheNext(t *testing.T) {
	line := "h:1:1 [0] NCCL INFO AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}\n"
	l, err := Parse(strings.NewReader(strings.Repeat("x", 3*maxLine) + line + line))
	if err != nil || len(l.Choices) != 1 || l.Lines != 2 {
		t.Errorf("%d choices in %d lines, error %v; want 1 in 2", len(l.Choices), l.Lines, err)
	}
}

func TestAnErrorOfTheFileIsTold(t *testing.T) {
	broken := errors.New("the disk is gone")
	_, err := Parse(io.MultiReader(strings.NewReader("a\n"), iotest.ErrReader(broken)))
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want the error of the reader", err)
	}
}

// TestPrintedChoicesAreRead prints choices by NCCL's format strings and reads them back.
func TestPrintedChoicesAreRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[A-Z][A-Za-z0-9_]{0,30}`)
		number := rapid.IntRange(0, 1<<20)
		want := Choice{
			Collective: name.Draw(t, "collective"), Works: 1,
			Bytes: rapid.Int64Range(0, 1<<50).Draw(t, "bytes"),
		}
		var message string
		if rapid.Bool().Draw(t, "windowed") {
			want.Engine, want.Kernel = Symmetric, name.Draw(t, "kernel")
			want.Channels, want.Threads = number.Draw(t, "channels"), number.Draw(t, "threads")
			want.Works = number.Draw(t, "works")
			message = fmt.Sprintf(
				"%s [Symmetric]: %d Bytes -> Kernel %s nchannels %d nthreads %d nWorks %d",
				want.Collective, want.Bytes, want.Kernel, want.Channels, want.Threads, want.Works)
		} else {
			want.Engine, want.Algorithm, want.Protocol = Plain, name.Draw(t, "algo"), "LL"
			low := number.Draw(t, "low")
			want.Channels = number.Draw(t, "more") + 1
			message = fmt.Sprintf("%s: %d Bytes -> Algo %s proto %s channel{Lo..Hi}={%d..%d}",
				want.Collective, want.Bytes, want.Algorithm, want.Protocol, low,
				low+want.Channels-1)
		}
		if got, ok := ParseChoice(message); !ok || got != want {
			t.Errorf("%q is read as %+v (%v), not %+v", message, got, ok, want)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add("h:1:1 [0] NCCL INFO AllReduce [Symmetric]: 8 Bytes -> Kernel K nchannels 1 nthreads 2\n")
	f.Add("h:1:1 [0] NCCL INFO AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}\n")
	f.Add("h:1:1 [0] NCCL INFO AllGather [Copy Engine]: 8 Bytes -> cudaMemcpy\n")
	f.Add("\nh:1:1 [0] a.cc:1 NCCL WARN x\nNCCL INFO \n[Symmetric]: -1 Bytes -> ")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := Parse(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if l.Lines != strings.Count(text, "\n") {
			t.Errorf("%d lines, want %d", l.Lines, strings.Count(text, "\n"))
		}
		for i := range l.Choices {
			c := &l.Choices[i]
			if c.Bytes < 0 || c.Works < 0 || !word(c.Collective) || c.Engine == "" {
				t.Errorf("%+v makes no sense", *c)
			}
			taken := 0
			call := Call{c.Collective, c.Bytes}
			for _, a := range l.Prove(call, call) {
				for _, k := range a.Taken {
					taken += k.Times
				}
			}
			if c.Works == 1 && taken == 0 {
				t.Errorf("%+v proves nothing", *c)
			}
		}
	})
}
