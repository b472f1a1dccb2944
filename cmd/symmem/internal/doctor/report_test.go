package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestReports changes the facts of testdata/h200.json, examines them, and prints the report or one
// section. go test -rewrite updates the expected output. The only command is:
//
//	examine [section=NAME]   apply the change in the input and print the report
func TestReports(t *testing.T) {
	datadriven.Walk(t, "testdata/reports", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			if d.Cmd != "examine" {
				t.Fatalf("unknown command %q", d.Cmd)
			}

			report := Examine(readFacts(t, d.Input))
			// Without a section, the whole report is printed.
			if d.HasArg("section") {
				var name string
				d.ScanArgs(t, "section", &name)
				report.Sections = slices.DeleteFunc(report.Sections, func(s Section) bool {
					return s.Name != name
				})
			}

			var out bytes.Buffer
			if err := report.WriteText(&out); err != nil {
				t.Fatal(err)
			}

			return out.String()
		})
	})
}

// readFacts returns the facts of testdata/h200.json after applying change, which is JSON with the
// fields to change, or "". A list in change replaces the list in the file.
func readFacts(t *testing.T, change string) *Facts {
	t.Helper()
	text, err := os.ReadFile("testdata/h200.json")
	if err != nil {
		t.Fatal(err)
	}

	facts := &Facts{}
	decode(t, text, facts)
	if change == "" {
		return facts
	}

	onlyChange := &Facts{}
	decode(t, []byte(change), onlyChange)
	clearLists(facts, onlyChange)
	decode(t, []byte(change), facts) // sets the fields in change, and keeps the others
	return facts
}

// clearLists clears the lists in facts that change contains, because decoding change would
// otherwise merge old and new elements. Other lists cannot be changed by tests.
func clearLists(facts, change *Facts) {
	if change.GPUs != nil {
		facts.GPUs = nil
	}

	if change.Links.Pairs != nil {
		facts.Links.Pairs = nil
	}

	if change.Trial != nil && change.Trial.RankResults != nil {
		facts.Trial.RankResults = nil
	}
}

// decode decodes JSON without unknown fields into dst.
func decode(t *testing.T, text []byte, dst *Facts) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(dst); err != nil {
		t.Fatal(err)
	}
}

func TestVerdictIsWorstLevel(t *testing.T) {
	for _, c := range []struct {
		name   string
		change string // to the facts of a machine without problems
		want   Level
	}{
		{"no problem", "", OK},
		{"a low limit of open files", `{"limits": {"files": 10}}`, Warn},
		{"a failed trial", `{"trial": {"error": "killed"}}`, Fail},
		{
			"a warning and a failure",
			`{"limits": {"files": 10}, "host": {"memfd_error": "x"}}`,
			Fail,
		},
	} {
		if got := Examine(readFacts(t, c.change)).Verdict; got != c.want {
			t.Errorf("%s: Verdict = %s, want %s", c.name, got, c.want)
		}
	}
}

// TestFindingsHaveAdvice examines a machine with many problems. Each finding that is a problem must
// say what to do about it.
func TestFindingsHaveAdvice(t *testing.T) {
	failedTrial := &Trial{Error: "x"}
	r := Examine(&Facts{RequestedBackend: "nccl", Backend: "nccl", Trial: failedTrial})
	problemCount := 0
	for _, s := range r.Sections {
		for _, f := range s.Findings {
			isProblem := f.Level != OK
			hasAdvice := f.Advice != ""
			if isProblem {
				problemCount++
			}

			if isProblem != hasAdvice {
				t.Errorf("section %s: finding %+v, want advice if and only if the level is not OK", s.Name, f)
			}
		}
	}

	if problemCount == 0 {
		t.Error("facts without a GPU and with a failed trial have no problem, want at least one")
	}
}

// TestReportJSONContainsFacts checks that the facts in a report as JSON are complete: examining
// them again gives the same verdict and sections.
func TestReportJSONContainsFacts(t *testing.T) {
	facts := readFacts(t, "")
	out, err := json.Marshal(Examine(facts))
	if err != nil {
		t.Fatal(err)
	}

	var decoded Report
	if err := json.Unmarshal(out, &decoded); err != nil {
		t.Fatal(err)
	}

	second := Examine(&decoded.Facts)
	if second.Verdict != decoded.Verdict || len(second.Sections) != len(decoded.Sections) {
		t.Errorf("examining the facts of a report: got verdict %s and %d sections, want %s and %d",
			second.Verdict, len(second.Sections), decoded.Verdict, len(decoded.Sections))
	}
}

var errPipeClosed = errors.New("the pipe is closed")

// failingWriter fails to write anything.
type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errPipeClosed }

func TestWriteTextReturnsWriteError(t *testing.T) {
	report := Examine(readFacts(t, ""))
	err := report.WriteText(failingWriter{})
	if err == nil || !strings.Contains(err.Error(), errPipeClosed.Error()) {
		t.Errorf("WriteText returned %v, want an error with %q", err, errPipeClosed)
	}
}
