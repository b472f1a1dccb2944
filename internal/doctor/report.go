package doctor

import (
	"bytes"
	"fmt"
	"io"
	"strings"
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
	if a == Fail || b == Fail {
		return Fail
	}
	if a == Warn || b == Warn {
		return Warn
	}
	return OK
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

// count counts the findings of a level.
func (r *Report) count(level Level) int {
	n := 0
	for i := range r.Sections {
		for _, f := range r.Sections[i].Findings {
			if f.Level == level {
				n++
			}
		}
	}
	return n
}

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	var b bytes.Buffer
	for i := range r.Sections {
		s := &r.Sections[i]
		fmt.Fprintf(&b, "%s\n", s.Name)
		for _, f := range s.Findings {
			fmt.Fprintf(&b, "  %-4s  %s\n", f.Level, indented(f.Text))
			if f.Advice != "" {
				fmt.Fprintf(&b, "        to do: %s\n", indented(f.Advice))
			}
		}
	}
	fmt.Fprintf(&b, "\n%s backend: %s\n", r.Backend, r.summary())
	_, err := w.Write(b.Bytes())
	return err
}

// indented moves further lines of a text under its first one.
func indented(text string) string { return strings.ReplaceAll(text, "\n", "\n        ") }

// summary counts what is not well.
func (r *Report) summary() string {
	failed, warned := r.count(Fail), r.count(Warn)
	switch {
	case failed > 0:
		return fmt.Sprintf("%d failed, %d warned", failed, warned)
	case warned > 0:
		return fmt.Sprintf("it works, with %d warned", warned)
	}
	return "all is well"
}
