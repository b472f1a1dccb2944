package tuning

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// The files in testdata/transcripts contain commands, each with the answer that it must print:
//
//	decode
//	{"version": 4, "device": "box", "otherwise": "plain", "rules": [ ... ]}
//	----
//	table of box: 1 rules
//
//	choose AllReduce ranks=2
//	65536B 65537B
//	----
//	64KiB: window, as the table of box says window up to 64KiB for AllReduce on 2 ranks
//	65537B: plain, as the table of box says plain above 64KiB for AllReduce on 2 ranks
//
// The lines between a command and its "----" are the input of the command. Here, decode loads a
// table. Its rules choose a path for collectives: plain, window, direct or two-level. Then choose
// looks up the path of an AllReduce for each size of its input.
//
// Other commands are:
//
//   - builtin backend=NAME device=(NAME) loads a built-in table. A "_" in a name is a space.
//   - encode prints the loaded table.
//   - direct has the arguments of choose, and optionally symmetric, which means that the buffers of
//     the calls are in windows. It prints true for the direct path, two-level, or else false.
//   - derive computes a rule from measured times; see runDerive.
//
// Groups with several machines have the argument machines=N.

// TestTranscripts compares the answers in the files with those of this package. The command
// go test -rewrite updates the files.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		var table *Table // of the latest builtin or decode in the file
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

// summarize returns the answer of the commands that load a table.
func summarize(table *Table) string {
	return fmt.Sprintf("%s: %d rules\n", table.Name(), len(table.Rules))
}

// argument returns the value of a command's argument, or "" if the command does not have it. It
// replaces each "_" by a space.
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
	operation := d.CmdArgs[0].Key // the first argument, such as AllReduce
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

// directAnswer returns the answer of the command direct for a path.
func directAnswer(path Path) string {
	if path == TwoLevel {
		return string(TwoLevel)
	}

	return strconv.FormatBool(path == Direct)
}

// runDerive runs the command derive, which prints the steps of the derived rule:
//
//	derive memory=symmetric
//	1KiB 20 10 5 0
//	1MiB 10 20 30 2 in-place
//
// Each line describes calls of one size. Here, calls with 1 KiB take 20 us on the plain path, 10 us
// on the window path, and 5 us on the direct path. The noise of these times is 0 percent. The calls
// with 1 MiB are in place.
//
// Without the argument memory, the lines have no times of the direct path. The argument otherwise
// is the path of calls without a rule, by default plain.
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

// parsePoint parses a line of the input of derive. hasDirect means that the line has a time of the
// direct path.
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
