package tuning

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestTranscripts runs the commands in the files of testdata and compares the results with the
// answers in the files, which go test -rewrite updates. A table has rules for the paths of
// collectives: plain, window, direct and two-level. Most commands use the table of the latest
// builtin or decode. The commands are:
//
//	builtin backend=NAME device=(NAME)     load a built-in table
//	decode                                 load the table in the input, or print the error
//	encode                                 print the table
//	choose OPERATION ranks=N [machines=N]  choose for each size of the input
//	direct OPERATION ranks=N [machines=N] [symmetric]
//	                                       print for each size of the input: true (direct path),
//	                                       false (neither) or two-level
//	derive [otherwise=PATH] [memory=MEMORY]
//	                                       derive a rule. A line of input has a size, the times in
//	                                       microseconds of plain, window and (with a memory) direct,
//	                                       the noise in percent, and "in-place" if the call was in
//	                                       place. otherwise, by default plain, is the path of calls
//	                                       without a rule
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		var table *Table
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			switch d.Cmd {
			case "builtin":
				table = Builtin(argument(d, "backend"), argument(d, "device"))
				return fmt.Sprintf("%s: %d rules\n", table.Name(), len(table.Rules))
			case "decode":
				decoded, err := Decode([]byte(d.Input))
				if err != nil {
					return "error: " + err.Error() + "\n"
				}

				table = decoded
				return fmt.Sprintf("%s: %d rules\n", table.Name(), len(table.Rules))
			case "encode":
				encoded, err := table.Encode()
				if err != nil {
					t.Fatal(err)
				}

				return string(encoded)
			case "choose", "direct":
				return runChoose(t, table, d)
			case "derive":
				return runDerive(t, d)
			}

			t.Fatalf("unknown command %q", d.Cmd)
			return ""
		})
	})
}

// argument returns the value of a command's argument, or "". It replaces each "_" by a space.
func argument(d *datadriven.TestData, key string) string {
	value := ""
	for _, arg := range d.CmdArgs {
		if arg.Key == key {
			value = arg.Vals[0]
		}
	}

	return strings.ReplaceAll(value, "_", " ")
}

// runChoose runs the command choose or direct.
func runChoose(t *testing.T, table *Table, d *datadriven.TestData) string {
	t.Helper()
	group := Shape{Machines: 1}
	d.ScanArgs(t, "ranks", &group.Ranks)
	d.MaybeScanArgs(t, "machines", &group.Machines)
	var out strings.Builder
	for _, text := range strings.Fields(d.Input) {
		size, err := ParseSize(text)
		if err != nil {
			t.Fatal(err)
		}

		operation, bytes := d.CmdArgs[0].Key, int64(size) // The operation is the first argument.
		var answer any                                    // a Path or, for direct, a bool or TwoLevel
		var reason Reason
		if d.Cmd == "choose" {
			answer, reason = table.Choose(operation, bytes, group)
		} else {
			var path Path
			path, reason = table.ChooseDirect(operation, bytes, d.HasArg("symmetric"), group)
			if path == TwoLevel {
				answer = path
			} else {
				answer = path == Direct
			}
		}

		fmt.Fprintf(&out, "%v: %v, as %v\n", size, answer, reason)
	}

	return out.String()
}

// runDerive runs the command derive: it derives a rule from measured times, and prints its steps.
func runDerive(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	memory := Memory(argument(d, "memory"))
	var points []Point
	for line := range strings.Lines(d.Input) {
		var p Point
		var size string
		line, p.InPlace = strings.CutSuffix(strings.TrimSpace(line), " in-place")
		fields := []any{&size, &p.PlainUS, &p.WindowUS}
		if memory != "" {
			fields = append(fields, &p.DirectUS)
		}

		fields = append(fields, &p.NoisePercent)
		_, err := fmt.Sscan(line, fields...)
		if err != nil {
			t.Fatal(err)
		}

		p.Bytes, err = ParseSize(size)
		if err != nil {
			t.Fatal(err)
		}

		points = append(points, p)
	}

	defaultPath := Plain
	if path := argument(d, "otherwise"); path != "" {
		defaultPath = Path(path)
	}

	calls := Calls{Operation: "AllGather", Shape: Shape{Ranks: 4, Machines: 1}, Memory: memory}
	r := Derive(calls, defaultPath, points)
	var out strings.Builder
	fmt.Fprintf(&out, "%v:\n", r.Calls)
	for i, s := range r.Steps {
		fmt.Fprintf(&out, "  %s %s (%d measured)\n", s.Path, r.sizeText(i), len(s.Measured))
	}

	return out.String()
}
