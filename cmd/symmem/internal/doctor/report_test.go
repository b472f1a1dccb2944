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
	if change != "" {
		changed := Facts{}
		decode(t, []byte(change), &changed)
		clearLists(facts, &changed)
		decode(t, []byte(change), facts)
	}
	return facts
}

// clearLists clears the lists in facts that change contains, because decoding change would
// otherwise merge old and new elements.
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

func decode(t *testing.T, text []byte, dst *Facts) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(dst); err != nil {
		t.Fatal(err)
	}
}

func TestVerdictIsWorstLevel(t *testing.T) {
	for change, want := range map[string]Level{
		"":                               OK,
		`{"limits": {"files": 10}}`:      Warn,
		`{"trial": {"error": "killed"}}`: Fail,
		`{"limits": {"files": 10}, "host": {"memfd_error": "x"}}`: Fail,
	} {
		if got := Examine(readFacts(t, change)).Verdict; got != want {
			t.Errorf("with the change %q: Verdict = %s, want %s", change, got, want)
		}
	}
}

func TestFindingsHaveAdvice(t *testing.T) {
	r := Examine(&Facts{RequestedBackend: "nccl", Backend: "nccl", Trial: &Trial{Error: "x"}})
	problemCount := 0
	for _, s := range r.Sections {
		for _, f := range s.Findings {
			isProblem, hasAdvice := f.Level != OK, f.Advice != ""
			if isProblem {
				problemCount++
			}
			if isProblem != hasAdvice {
				t.Errorf("section %s: finding %+v, want advice unless the level is OK", s.Name, f)
			}
		}
	}
	if problemCount == 0 {
		t.Error("facts without a GPU and with a failed trial have no problem, want one")
	}
}

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
		t.Errorf("examining the facts of a report gives the verdict %s and %d sections, want %s and %d",
			second.Verdict, len(second.Sections), decoded.Verdict, len(decoded.Sections))
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("the pipe is closed") }

func TestWriteTextReturnsWriteError(t *testing.T) {
	err := Examine(readFacts(t, "")).WriteText(failingWriter{})
	if err == nil || !strings.Contains(err.Error(), "the pipe is closed") {
		t.Errorf("WriteText returned %v, want the error of the writer", err)
	}
}
