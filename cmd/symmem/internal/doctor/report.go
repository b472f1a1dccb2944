package doctor

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"symmem/internal/ranklist"
)

// Level says how well something is. A section is as well as its worst finding.
type Level string

// The levels, from the best to the worst.
const (
	// OK needs nothing done.
	OK Level = "ok"
	// Warn works, but not as well as it could, or not in every case.
	Warn Level = "warn"
	// Fail does not work.
	Fail Level = "fail"
)

// worse returns the worse one of two levels.
func worse(a, b Level) Level {
	levels := []Level{OK, Warn, Fail}
	return levels[max(slices.Index(levels, a), slices.Index(levels, b))]
}

// Finding is one thing that was looked at.
type Finding struct {
	Level Level  `json:"level"`
	Text  string `json:"text"`
	// Advice says what to do; findings that are well have none.
	Advice string `json:"advice,omitempty"`
}

// Section holds findings about one thing.
type Section struct {
	Name     string    `json:"name"`
	Level    Level     `json:"level"`
	Findings []Finding `json:"findings"`
}

// Report is what Examine found. It is immutable.
type Report struct {
	// Verdict is the worst level of all sections.
	Verdict Level `json:"verdict"`
	// Backend is the one that was examined, Ranks the number of ranks of the trial; 0 if there was
	// none.
	Backend  string    `json:"backend"`
	Ranks    int       `json:"ranks"`
	Sections []Section `json:"sections"`
	// Facts are what the findings are about.
	Facts Facts `json:"facts"`
}

// ok adds a finding that needs nothing done.
func (s *Section) ok(format string, args ...any) {
	s.Findings = append(s.Findings, Finding{Level: OK, Text: fmt.Sprintf(format, args...)})
}

// add adds a finding with what to do about it.
func (s *Section) add(level Level, advice, format string, args ...any) {
	s.Findings = append(s.Findings, Finding{level, fmt.Sprintf(format, args...), advice})
	s.Level = worse(s.Level, level)
}

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	var b bytes.Buffer
	counts := map[Level]int{}
	for i := range r.Sections {
		s := &r.Sections[i]
		fmt.Fprintf(&b, "%s\n", s.Name)
		for _, f := range s.Findings {
			counts[f.Level]++
			fmt.Fprintf(&b, "  %-4s  %s\n", f.Level, indented(f.Text))
			if f.Advice != "" {
				fmt.Fprintf(&b, "        to do: %s\n", indented(f.Advice))
			}
		}
	}
	fmt.Fprintf(&b, "\n%s backend: %s\n", r.Backend, summary(counts[Fail], counts[Warn]))
	_, err := w.Write(b.Bytes())
	return err
}

// indented moves further lines of a text under its first one.
func indented(text string) string { return strings.ReplaceAll(text, "\n", "\n        ") }

// summary says what is not well.
func summary(failed, warned int) string {
	switch {
	case failed > 0:
		return fmt.Sprintf("%d failed, %s", failed, ranklist.Plural(warned, "warning"))
	case warned > 0:
		return "it works, with " + ranklist.Plural(warned, "warning")
	}
	return "all is well"
}
