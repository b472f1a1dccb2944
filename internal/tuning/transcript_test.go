package tuning

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// The commands of testdata/transcripts are:
//
//	builtin backend=NAME device=(NAME)         load a built-in table
//	decode                                     load the table of the input
//	encode                                     print the loaded table
//	choose OPERATION ranks=N [machines=N]      print a plain or window path for each size
//	direct OPERATION ranks=N ... [symmetric]   print whether calls go direct, for each size
//	derive [memory=M] [otherwise=PATH]         print a rule for measured times; see runDerive
//
// The flag -rewrite of go test replaces the expected output.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		var table *Table // loaded by the latest builtin or decode
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			switch d.Cmd {
			case "builtin":
				table = Builtin(argument(d, "backend"), argument(d, "device"))
				return summarize(table)
			case "decode":
				decoded, err := Decode([]byte(d.Input))
				if err != nil {
					return "error: " + err.Error() + "\n"
				}

				table = decoded
				return summarize(table)
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

func summarize(table *Table) string {
	return fmt.Sprintf("%s: %d rules\n", table.Name(), len(table.Rules))
}

// argument returns the value of an argument, with "_" replaced by spaces, or "" if it is absent.
func argument(d *datadriven.TestData, key string) string {
	value := ""
	for _, arg := range d.CmdArgs {
		if arg.Key == key {
			value = arg.Vals[0]
		}
	}

	return strings.ReplaceAll(value, "_", " ")
}

func runChoose(t *testing.T, table *Table, d *datadriven.TestData) string {
	t.Helper()
	operation := d.CmdArgs[0].Key
	group := Shape{Machines: 1}
	d.ScanArgs(t, "ranks", &group.Ranks)
	d.MaybeScanArgs(t, "machines", &group.Machines)
	isSymmetric := d.HasArg("symmetric")
	var out strings.Builder
	for _, text := range strings.Fields(d.Input) {
		size, err := ParseSize(text)
		if err != nil {
			t.Fatal(err)
		}

		bytes := int64(size)
		if d.Cmd == "choose" {
			path, reason := table.Choose(operation, bytes, group)
			fmt.Fprintf(&out, "%v: %v, as %v\n", size, path, reason)
		} else {
			path, reason := table.ChooseDirect(operation, bytes, isSymmetric, group)
			fmt.Fprintf(&out, "%v: %v, as %v\n", size, directAnswer(path), reason)
		}
	}

	return out.String()
}

// directAnswer returns "two-level", or "true" or "false" for any other path.
func directAnswer(path Path) string {
	if path == TwoLevel {
		return string(TwoLevel)
	}

	return strconv.FormatBool(path == Direct)
}

// runDerive prints the steps of the rule derived from input lines such as
//
//	1MiB 10 20 30 2 in-place
//
// The numbers are the size, the microseconds of the plain, window and direct path, and the noise in
// percent. Lines for a rule without memory omit the direct path.
func runDerive(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	memory := Memory(argument(d, "memory"))
	hasDirect := memory != ""
	var points []Point
	for line := range strings.Lines(d.Input) {
		points = append(points, parsePoint(t, line, hasDirect))
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

func parsePoint(t *testing.T, line string, hasDirect bool) (p Point) {
	t.Helper()
	line, p.InPlace = strings.CutSuffix(strings.TrimSpace(line), " in-place")
	var size string
	fields := []any{&size, &p.PlainUS, &p.WindowUS}
	if hasDirect {
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

	return p
}
