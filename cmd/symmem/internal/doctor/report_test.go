package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestReports runs the files in testdata/reports. The flag -rewrite updates the expected output.
//
//	examine [section=NAME]   print the report, or one section of it, on a machine without problems
//	                         after the change in the input
func TestReports(t *testing.T) {
	datadriven.Walk(t, "testdata/reports", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			if d.Cmd != "examine" {
				t.Fatalf("unknown command %q", d.Cmd)
			}

			report := Examine(readFacts(t, d.Input))
			if d.HasArg("section") {
				var name string
				d.ScanArgs(t, "section", &name)
				hasOtherName := func(s Section) bool { return s.Name != name }
				report.Sections = slices.DeleteFunc(report.Sections, hasOtherName)
			}

			var out bytes.Buffer
			if err := report.WriteText(&out); err != nil {
				t.Fatal(err)
			}

			return out.String()
		})
	})
}

// readFacts returns the facts of testdata/h200.json, a machine without problems. change is empty or
// replaces some of them, such as {"limits": {"files": 10}}.
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

	changedFacts := &Facts{}
	decode(t, []byte(change), changedFacts)
	clearLists(facts, changedFacts)
	decode(t, []byte(change), facts) // keeps the fields that change does not name
	return facts
}

// clearLists clears the lists in facts that change replaces, because JSON decoding would merge the
// old and new elements. It handles only the lists that tests change.
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

// decode fails the test if the JSON has an unknown field.
func decode(t *testing.T, text []byte, facts *Facts) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(facts); err != nil {
		t.Fatal(err)
	}
}

func TestVerdictIsWorstLevel(t *testing.T) {
	for _, c := range []struct {
		name   string
		change string // see readFacts
		want   Level
	}{
		{
			name: "no problem",
			want: OK,
		},
		{
			name:   "a low limit of open files",
			change: `{"limits": {"files": 10}}`,
			want:   Warn,
		},
		{
			name:   "a failed trial",
			change: `{"trial": {"error": "killed"}}`,
			want:   Fail,
		},
		{
			name:   "a warning and a failure",
			change: `{"limits": {"files": 10}, "host": {"memfd_error": "x"}}`,
			want:   Fail,
		},
	} {
		if got := Examine(readFacts(t, c.change)).Verdict; got != c.want {
			t.Errorf("%s: Verdict = %s, want %s", c.name, got, c.want)
		}
	}
}

// A finding has advice if and only if it is a problem.
func TestFindingsHaveAdvice(t *testing.T) {
	withoutGPU := &Facts{
		RequestedBackend: "nccl", Backend: "nccl", Trial: &Trial{Error: "failed trial"},
	}
	r := Examine(withoutGPU)
	problemCount := 0
	for _, s := range r.Sections {
		for _, f := range s.Findings {
			isProblem := f.Level != OK
			if isProblem {
				problemCount++
			}

			hasAdvice := f.Advice != ""
			if hasAdvice != isProblem {
				t.Errorf("section %s: finding %+v, want advice if and only if the level is not OK", s.Name, f)
			}
		}
	}

	if problemCount == 0 {
		t.Error("facts without a GPU and with a failed trial have no problem, want at least one")
	}
}

// Examining the facts in a JSON report gives the same report.
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

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errPipeClosed }

func TestWriteTextReturnsWriteError(t *testing.T) {
	report := Examine(readFacts(t, ""))
	err := report.WriteText(failingWriter{})
	if !errors.Is(err, errPipeClosed) {
		t.Errorf("WriteText returned the error %v, want %v", err, errPipeClosed)
	}
}
