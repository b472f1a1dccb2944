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

const logPrefix = "h:1:1 [0] NCCL INFO " // host, process ID, thread ID, and CUDA device

// TestLogsOfEachVersion runs the files in testdata/logs. The flag -rewrite updates the expected
// output. Commands:
//
//	parse   parse the input as a log, and print the kernel that NCCL chose for each collective
//	prove   print the kernels that ran each collective in the input, according to the parsed log
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

func formatLog(l Log) string {
	var b strings.Builder
	for _, c := range l {
		fmt.Fprintf(&b, "%v: %s, windowed %v, %d works\n", c.Collective, c.Description, c.Windowed,
			c.Calls)
	}

	return b.String()
}

func formatKernels(t *testing.T, l Log, input string) string {
	t.Helper()
	var b strings.Builder
	for line := range strings.Lines(input) {
		kernels := l.KernelsOf(parseCollective(t, line))
		verdict := "not windowed"
		if kernels.Windowed {
			verdict = "windowed"
		}

		fmt.Fprintf(&b, "%-12s %v\n", verdict, kernels)
	}

	return b.String()
}

// parseCollective parses a line such as "AllReduce 1024".
func parseCollective(t *testing.T, line string) Collective {
	t.Helper()
	operation, size, _ := strings.Cut(strings.TrimSpace(line), " ")
	bytes, err := strconv.ParseInt(size, 10, 64)
	if err != nil {
		t.Fatal(err)
	}

	return Collective{Operation: operation, Bytes: bytes}
}

// NCCL may still be writing the last line.
func TestParseIgnoresUnterminatedLine(t *testing.T) {
	const line = logPrefix + "AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}"
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

func TestParseChoice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		message, want := drawChoice(t)
		if got, ok := ParseChoice(message); !ok || got != want {
			t.Errorf("ParseChoice(%q) = %+v, %v; want %+v, true", message, got, ok, want)
		}
	})
}

// drawChoice draws a choice of a kernel and NCCL's message about the choice. A kernel that uses
// windows can execute several calls. NCCL's name for these calls is "works".
func drawChoice(t *rapid.T) (message string, choice Choice) {
	name := rapid.StringMatching(`[A-Z][A-Za-z0-9_]{0,30}`)
	count := rapid.IntRange(0, 1<<20) // the bound is arbitrary
	choice.Operation = name.Draw(t, "collective")
	choice.Bytes = rapid.Int64Range(0, 1<<50).Draw(t, "bytes")
	kernel := name.Draw(t, "kernel")
	choice.Windowed = rapid.Bool().Draw(t, "windowed")
	if choice.Windowed {
		choice.Description = "symmetric kernel " + kernel
		choice.Calls = count.Draw(t, "works")
		message = fmt.Sprintf(
			"%s [Symmetric]: %d Bytes -> Kernel %s nchannels %d nthreads %d nWorks %d",
			choice.Operation, choice.Bytes, kernel, count.Draw(t, "channels"),
			count.Draw(t, "threads"), choice.Calls)
		return message, choice
	}

	choice.Description = "plain " + kernel + "/LL"
	choice.Calls = 1
	message = fmt.Sprintf("%s: %d Bytes -> Algo %s proto LL channel{Lo..Hi}={%d..%d}",
		choice.Operation, choice.Bytes, kernel, count.Draw(t, "low"), count.Draw(t, "high"))
	return message, choice
}

func FuzzParse(f *testing.F) {
	f.Add(logPrefix + "AllReduce [Symmetric]: 8 Bytes -> Kernel K nchannels 1 nthreads 2\n")
	f.Add(logPrefix + "AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}\n")
	f.Add(logPrefix + "AllGather [Copy Engine]: 8 Bytes -> cudaMemcpy\n")
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
				t.Errorf("choice %+v has no operation or description", c)
			}

			// The bytes of a choice for several calls are a sum, which matches no collective.
			if c.Calls == 1 && !l.KernelsOf(c.Collective).Logged {
				t.Errorf("KernelsOf does not find %+v in the log", c)
			}
		}
	})
}
