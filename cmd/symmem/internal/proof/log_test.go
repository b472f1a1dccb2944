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

// TestLogsOfEachVersion parses the logs in testdata, which contain lines of each NCCL version. go
// test -rewrite updates the expected output. The commands are:
//
//	parse   parse the input as a log
//	prove   print what the previous log proves about the collectives and sizes in the input
func TestLogsOfEachVersion(t *testing.T) {
	datadriven.Walk(t, "testdata/logs", func(t *testing.T, path string) {
		var log Log
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			switch d.Cmd {
			case "parse":
				var err error
				log, err = Parse(strings.NewReader(d.Input + "\n"))
				if err != nil {
					t.Fatal(err)
				}

				return formatLog(log)
			case "prove":
				return formatKernels(t, log, d.Input)
			}

			t.Fatalf("unknown command %q", d.Cmd)
			return ""
		})
	})
}

// formatLog returns a line about each choice of a kernel in a log.
func formatLog(l Log) string {
	var b strings.Builder
	for _, c := range l {
		fmt.Fprintf(&b, "%v: %s, windowed %v, %d works\n", c.Collective, c.Description, c.Windowed,
			c.Calls)
	}

	return b.String()
}

// formatKernels returns a line about the kernels of each collective in the input, which has lines
// such as "AllReduce 1024".
func formatKernels(t *testing.T, l Log, input string) string {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(input) {
		name, size, _ := strings.Cut(strings.TrimSpace(line), " ")
		bytes, err := strconv.ParseInt(size, 10, 64)
		if err != nil {
			t.Fatal(err)
		}

		kernels := l.KernelsOf(Collective{Operation: name, Bytes: bytes})
		verdict := "not windowed"
		if kernels.Windowed {
			verdict = "windowed"
		}

		fmt.Fprintf(&b, "%-12s %v\n", verdict, kernels)
	}

	return b.String()
}

// TestParseIgnoresUnterminatedLine parses a log while NCCL is writing its second line.
func TestParseIgnoresUnterminatedLine(t *testing.T) {
	line := "h:1:1 [0] NCCL INFO AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}"
	l, err := Parse(strings.NewReader(line + "\n" + line))
	if err != nil || len(l) != 1 {
		t.Errorf("Parse returned %d choices, error %v; want 1, nil", len(l), err)
	}
}

func TestParseReturnsReadError(t *testing.T) {
	errRead := errors.New("read failed")
	brokenFile := io.MultiReader(strings.NewReader("a\n"), iotest.ErrReader(errRead))
	if _, err := Parse(brokenFile); !errors.Is(err, errRead) {
		t.Errorf("Parse returned the error %v, want %v", err, errRead)
	}
}

// TestParseChoice formats choices with NCCL's format strings and parses them. Kernels that use
// windows have another format, with a number of calls (works).
func TestParseChoice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[A-Z][A-Za-z0-9_]{0,30}`)
		number := rapid.IntRange(0, 1<<20)
		want := Choice{
			Collective: Collective{
				Operation: name.Draw(t, "collective"),
				Bytes:     rapid.Int64Range(0, 1<<50).Draw(t, "bytes"),
			},
			Calls: 1,
		}
		kernel := name.Draw(t, "kernel")
		var message string
		want.Windowed = rapid.Bool().Draw(t, "windowed")
		if want.Windowed {
			want.Description = "symmetric kernel " + kernel
			want.Calls = number.Draw(t, "works")
			message = fmt.Sprintf(
				"%s [Symmetric]: %d Bytes -> Kernel %s nchannels %d nthreads %d nWorks %d",
				want.Operation, want.Bytes, kernel, number.Draw(t, "channels"),
				number.Draw(t, "threads"), want.Calls)
		} else {
			want.Description = "plain " + kernel + "/LL"
			message = fmt.Sprintf("%s: %d Bytes -> Algo %s proto LL channel{Lo..Hi}={%d..%d}",
				want.Operation, want.Bytes, kernel, number.Draw(t, "low"), number.Draw(t, "high"))
		}

		if got, ok := ParseChoice(message); !ok || got != want {
			t.Errorf("ParseChoice(%q) = %+v, %v; want %+v, true", message, got, ok, want)
		}
	})
}

// FuzzParse checks that Parse returns only complete choices, and that KernelsOf finds those of one
// call. The size of a choice for several calls is their sum, so KernelsOf ignores it.
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

		for _, c := range l {
			if c.Bytes < 0 || c.Calls < 0 {
				t.Errorf("choice %+v has a negative number", c)
			}

			if c.Operation == "" || c.Description == "" {
				t.Errorf("choice %+v lacks a text", c)
			}

			if c.Calls == 1 && !l.KernelsOf(c.Collective).Logged {
				t.Errorf("KernelsOf does not find %+v in the log", c)
			}
		}
	})
}
