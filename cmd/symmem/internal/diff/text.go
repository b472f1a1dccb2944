package diff

import (
	"bufio"
	"fmt"
	"io"

	"symmem/cmd/symmem/internal/diff/history"
	"symmem/internal/ranklist"
)

// maxLines limits the lines of each stack, and the number of notes.
const maxLines = 12

// WriteText writes the report as text.
func (r *Report) WriteText(w io.Writer) error {
	t := &textWriter{Writer: bufio.NewWriter(w)}
	events := 0
	for _, rank := range r.Ranks {
		events += rank.Events
	}
	t.line("%s, %s.", ranklist.Plural(len(r.Ranks), "file"), ranklist.Plural(events, "event"))
	for i := range r.Sequences {
		t.sequence(&r.Sequences[i])
	}
	t.notes(r)
	verdict := "The ranks agree."
	if !r.Agree {
		verdict = "The ranks differ."
	}
	t.line("\n%s", verdict)
	if err := t.Flush(); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

type textWriter struct{ *bufio.Writer }

func (t *textWriter) line(format string, args ...any) { fmt.Fprintf(t, format+"\n", args...) }

func (t *textWriter) sequence(s *Sequence) {
	t.line("\n%s, %s:", s.Title, ranklist.Ranks(s.Ranks))
	switch {
	case len(s.Ranks) < 2:
		t.line("  only one rank has it, so there is nothing to compare")
	case s.Requests == nil:
		t.line("  requests agree: %d", s.Equal)
	}
	if s.Requests != nil {
		t.difference("requests", s.Requests)
	}
	if s.Places != nil {
		t.difference("places", s.Places)
	}
	for _, note := range s.Notes {
		t.line("  note: %s", note)
	}
	if s.Replay != nil && (s.Requests != nil || s.Places != nil) {
		t.line("  replay: %s", s.Replay.Symmem)
		if s.Replay.PyTorch != "" {
			t.line("  replay: %s", s.Replay.PyTorch)
		}
	}
}

func (t *textWriter) difference(subject string, d *Difference) {
	t.line("  %s differ first at request %d: %s", subject, d.Index, d.Kind)
	for _, line := range d.Before {
		t.line("      %s", line)
	}
	for i, v := range d.Variants {
		position := ""
		if v.Number >= 0 {
			position = fmt.Sprintf(" (event %d in the file)", v.Number)
		}
		mark := string(rune('A' + i%26))
		kind := ""
		if v.Kind != "" {
			kind = " [" + v.Kind + "]"
		}
		t.line("   %s  %s%s: %s%s", mark, ranklist.Ranks(v.Ranks), kind, v.Text, position)
		t.stack(v.Stack)
	}
	switch {
	case len(d.Blamed) > 0:
		t.line("   in the minority: %s", ranklist.Ranks(d.Blamed))
	default:
		t.line("   no majority: the file does not show which rank is wrong")
	}
	for _, line := range d.Explanation {
		t.line("   %s", line)
	}
}

func (t *textWriter) stack(lines []string) {
	for i, line := range lines {
		if i == maxLines {
			t.line("         and %d more", len(lines)-i)
			return
		}
		t.line("         %s", line)
	}
}

// notes writes each distinct note once, with the ranks that have it.
func (t *textWriter) notes(r *Report) {
	ranks := map[string][]int{}
	var order []string
	for _, rank := range r.Ranks {
		for _, note := range rank.Notes {
			if ranks[note] == nil {
				order = append(order, note)
			}
			ranks[note] = append(ranks[note], rank.Rank)
		}
	}
	if len(order)+len(r.Notes) > 0 {
		t.line("\nNotes:")
	}
	for _, note := range r.Notes {
		t.line("  %s", note)
	}
	for i, note := range order {
		if i == maxLines {
			t.line("  and %d more notes", len(order)-i)
			return
		}
		t.line("  %s: %s", ranklist.Ranks(ranks[note]), history.Clean(note))
	}
}
