package doctor

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"symmem/internal/ranklist"
)

// Level rates a finding, a section or a report. The level of a section or report is that of its
// worst finding.
type Level string

// The levels, from the best to the worst.
const (
	OK   Level = "ok"   // no action is needed
	Warn Level = "warn" // symmem works, but some calls are slow or fail
	Fail Level = "fail" // symmem does not work
)

func worseLevel(a, b Level) Level {
	levels := []Level{OK, Warn, Fail}
	return levels[max(slices.Index(levels, a), slices.Index(levels, b))]
}

// Finding describes one result of the examination.
type Finding struct {
	Level Level  `json:"level"`
	Text  string `json:"text"`
	// Advice states how to solve the problem, or is empty if there is none.
	Advice string `json:"advice,omitempty"`
}

// Section holds the findings about one subject.
type Section struct {
	Name     string    `json:"name"`  // the subject, such as "driver"
	Level    Level     `json:"level"` // the worst level of the findings
	Findings []Finding `json:"findings"`
}

// Report is the result of Examine.
type Report struct {
	Verdict  Level     `json:"verdict"`  // the worst level of the sections
	Backend  string    `json:"backend"`  // the backend that symmem.Open would choose
	Ranks    int       `json:"ranks"`    // number of ranks in the trial, or 0 without a trial
	Sections []Section `json:"sections"` // only sections with findings
	Facts    Facts     `json:"facts"`    // the facts that were examined
}

// Problems returns the findings whose level is not OK.
func (r *Report) Problems() []Finding {
	all := []Finding{}
	for i := range r.Sections {
		for _, f := range r.Sections[i].Findings {
			if f.Level != OK {
				all = append(all, f)
			}
		}
	}
	return all
}

// addOK adds a finding that needs no action. format and args are the text.
func (s *Section) addOK(format string, args ...any) {
	s.Findings = append(s.Findings, Finding{Level: OK, Text: fmt.Sprintf(format, args...)})
}

// add adds a finding. format and args are the text.
func (s *Section) add(level Level, advice, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.Findings = append(s.Findings, Finding{Level: level, Text: text, Advice: advice})
	s.Level = worseLevel(s.Level, level)
}

// WriteText writes the findings of each section as text, and a summary.
func (r *Report) WriteText(w io.Writer) error {
	var b bytes.Buffer
	counts := map[Level]int{} // number of findings by level
	for i := range r.Sections {
		s := &r.Sections[i]
		fmt.Fprintf(&b, "%s\n", s.Name)
		for _, f := range s.Findings {
			counts[f.Level]++
			fmt.Fprintf(&b, "  %-4s  %s\n", f.Level, indent(f.Text))
			if f.Advice != "" {
				fmt.Fprintf(&b, "        to do: %s\n", indent(f.Advice))
			}
		}
	}
	fmt.Fprintf(&b, "\n%s backend: %s\n", r.Backend, summarize(counts[Fail], counts[Warn]))
	_, err := w.Write(b.Bytes())
	return err
}

func indent(text string) string { return strings.ReplaceAll(text, "\n", "\n        ") }

func summarize(failed, warned int) string {
	switch {
	case failed > 0:
		return fmt.Sprintf("%d failed, %s", failed, ranklist.Plural(warned, "warning"))
	case warned > 0:
		return "it works, with " + ranklist.Plural(warned, "warning")
	}
	return "no problems"
}
