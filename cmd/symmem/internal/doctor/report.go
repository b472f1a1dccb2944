package doctor

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"symmem/internal/ranklist"
)

// Level rates a finding or a section. A section has the level of its worst finding.
type Level string

// The levels, from the best to the worst.
const (
	// OK means that no action is needed.
	OK Level = "ok"
	// Warn means that symmem works, but not as well as it could, or not in all cases.
	Warn Level = "warn"
	// Fail means that symmem does not work.
	Fail Level = "fail"
)

func worse(a, b Level) Level {
	levels := []Level{OK, Warn, Fail}
	return levels[max(slices.Index(levels, a), slices.Index(levels, b))]
}

// Finding is the judgment of one fact.
type Finding struct {
	Level Level  `json:"level"`
	Text  string `json:"text"`
	// Advice suggests a remedy.
	Advice string `json:"advice,omitempty"`
}

// Section holds the findings about one subject.
type Section struct {
	Name     string    `json:"name"`
	Level    Level     `json:"level"`
	Findings []Finding `json:"findings"`
}

// Report is the result of Examine.
type Report struct {
	Verdict Level  `json:"verdict"` // the worst level of all sections
	Backend string `json:"backend"`
	// Ranks is the number of ranks of the trial, or 0 without a trial.
	Ranks    int       `json:"ranks"`
	Sections []Section `json:"sections"`
	Facts    Facts     `json:"facts"`
}

// Problems returns the findings that are not OK.
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

func (s *Section) ok(format string, args ...any) {
	s.Findings = append(s.Findings, Finding{Level: OK, Text: fmt.Sprintf(format, args...)})
}

func (s *Section) add(level Level, advice, format string, args ...any) {
	s.Findings = append(s.Findings, Finding{level, fmt.Sprintf(format, args...), advice})
	s.Level = worse(s.Level, level)
}

// WriteText writes the report as text.
func (r *Report) WriteText(w io.Writer) error {
	var b bytes.Buffer
	counts := map[Level]int{}
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
	fmt.Fprintf(&b, "\n%s backend: %s\n", r.Backend, summary(counts[Fail], counts[Warn]))
	_, err := w.Write(b.Bytes())
	return err
}

func indent(text string) string { return strings.ReplaceAll(text, "\n", "\n        ") }

func summary(failed, warned int) string {
	switch {
	case failed > 0:
		return fmt.Sprintf("%d failed, %s", failed, ranklist.Plural(warned, "warning"))
	case warned > 0:
		return "it works, with " + ranklist.Plural(warned, "warning")
	}
	return "no problems"
}
