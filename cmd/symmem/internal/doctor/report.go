package doctor

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"symmem/internal/ranklist"
)

// Level rates a finding. A section or report has the level of its worst finding.
type Level string

// The levels, from the best to the worst.
const (
	OK   Level = "ok"   // no action is needed
	Warn Level = "warn" // symmem works, but some calls are slow or fail
	Fail Level = "fail" // symmem does not work
)

func worseLevel(a, b Level) Level {
	switch {
	case a == Fail || b == Fail:
		return Fail
	case a == Warn || b == Warn:
		return Warn
	default:
		return OK
	}
}

// Finding describes one result of the examination.
type Finding struct {
	Level Level  `json:"level"`
	Text  string `json:"text"`
	// Advice states how to solve the problem. It is empty if Level is OK.
	Advice string `json:"advice,omitempty"`
}

// Section holds the findings about one subject. As text:
//
//	driver
//	  ok    driver 520.61 for CUDA 11.8, /usr/lib/libcuda.so.1
//	  warn  NCCL does not use virtual memory management with a driver for CUDA 11.8, ...
//	        to do: install a driver for CUDA 12.0 or newer
type Section struct {
	Name     string    `json:"name"`  // such as "driver"
	Level    Level     `json:"level"` // worst level of the findings
	Findings []Finding `json:"findings"`
}

// Report is the result of Examine.
type Report struct {
	Verdict  Level     `json:"verdict"`  // worst level of the sections
	Backend  string    `json:"backend"`  // the backend that symmem.Open chooses
	Ranks    int       `json:"ranks"`    // number of ranks in the trial, or 0 without a trial
	Sections []Section `json:"sections"` // sections without findings are omitted
	Facts    Facts     `json:"facts"`    // input of Examine
}

// Problems returns the findings whose level is not OK.
func (r *Report) Problems() []Finding {
	problems := []Finding{} // not nil, so that JSON shows [] instead of null
	for i := range r.Sections {
		for _, f := range r.Sections[i].Findings {
			if f.Level != OK {
				problems = append(problems, f)
			}
		}
	}

	return problems
}

// addOK adds a finding that needs no action.
func (s *Section) addOK(format string, args ...any) {
	s.Findings = append(s.Findings, Finding{Level: OK, Text: fmt.Sprintf(format, args...)})
}

// add adds a finding that format describes. advice states how to solve the problem.
func (s *Section) add(level Level, advice, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.Findings = append(s.Findings, Finding{Level: level, Text: text, Advice: advice})
	s.Level = worseLevel(s.Level, level)
}

// WriteText writes the findings of each section as text, and a summary.
func (r *Report) WriteText(w io.Writer) error {
	var out bytes.Buffer
	counts := map[Level]int{}
	for i := range r.Sections {
		s := &r.Sections[i]
		fmt.Fprintf(&out, "%s\n", s.Name)
		for _, f := range s.Findings {
			counts[f.Level]++
			fmt.Fprintf(&out, "  %-4s  %s\n", f.Level, indent(f.Text))
			if f.Advice != "" {
				fmt.Fprintf(&out, "        to do: %s\n", indent(f.Advice))
			}
		}
	}

	fmt.Fprintf(&out, "\n%s backend: %s\n", r.Backend, summaryText(counts))
	_, err := w.Write(out.Bytes())
	return err
}

// indent aligns all lines of a finding with the first, which starts in column 8.
func indent(text string) string {
	return strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", 8))
}

func summaryText(counts map[Level]int) string {
	warnings := ranklist.Plural(counts[Warn], "warning")
	switch {
	case counts[Fail] > 0:
		return fmt.Sprintf("%d failed, %s", counts[Fail], warnings)
	case counts[Warn] > 0:
		return "it works, with " + warnings
	default:
		return "no problems"
	}
}
