package diff

import (
	"bufio"
	"fmt"
	"io"

	"symmem/cmd/symmem/internal/diff/history"
	"symmem/internal/ranklist"
)

// maxLines is the maximum number of lines of a stack, and of notes of the ranks. The rest is left
// out.
const maxLines = 12

// WriteText writes the report as text. For each pool or group, it writes the first differences
// between the ranks. At the end, it writes the notes and whether the ranks agree.
func (r *Report) WriteText(w io.Writer) error {
	t := &textWriter{Writer: bufio.NewWriter(w)}
	eventCount := 0
	for _, rank := range r.Ranks {
		eventCount += rank.EventCount
	}

	t.writeLine("%s, %s.", ranklist.Plural(len(r.Ranks), "file"),
		ranklist.Plural(eventCount, "event"))
	for i := range r.Sequences {
		t.writeSequence(&r.Sequences[i])
	}

	t.writeNotes(r)
	verdict := "The ranks agree."
	if !r.RanksAgree {
		verdict = "The ranks differ."
	}

	t.writeLine("\n%s", verdict)
	return t.Flush()
}

// textWriter writes lines of text. Its methods ignore errors, because bufio.Writer.Flush returns
// the first one.
type textWriter struct{ *bufio.Writer }

func (t *textWriter) writeLine(format string, args ...any) { fmt.Fprintf(t, format+"\n", args...) }

func (t *textWriter) writeSequence(s *SequenceResult) {
	t.writeLine("\n%s, %s:", s.Title, ranklist.Ranks(s.Ranks))
	switch {
	case len(s.Ranks) < 2:
		t.writeLine("  only one rank has it, so there is nothing to compare")
	case s.RequestDifference == nil:
		t.writeLine("  requests agree: %d", s.EqualRequests)
	default:
		t.writeDifference("requests", s.RequestDifference)
	}

	if s.PlacementDifference != nil {
		t.writeDifference("places", s.PlacementDifference)
	}

	for _, note := range s.Notes {
		t.writeLine("  note: %s", note)
	}

	hasDifference := s.RequestDifference != nil || s.PlacementDifference != nil
	if hasDifference && s.Replay != nil {
		t.writeLine("  replay: %s", s.Replay.SymmemText)
		if s.Replay.PyTorchText != "" {
			t.writeLine("  replay: %s", s.Replay.PyTorchText)
		}
	}
}

// writeDifference writes the first difference between the ranks. subject is the noun for what
// differs: "requests" or "places".
func (t *textWriter) writeDifference(subject string, d *Difference) {
	t.writeLine("  %s differ first at request %d: %s", subject, d.RequestIndex, d.Kind)
	for _, line := range d.PrecedingRequests {
		t.writeLine("      %s", line)
	}

	for i, v := range d.Variants {
		letter := string(rune('A' + i%26)) // names the variant; repeats after Z
		kind := ""
		if v.DifferenceKind != "" {
			kind = " [" + v.DifferenceKind + "]"
		}

		position := ""
		if v.EventIndex >= 0 {
			position = fmt.Sprintf(" (event %d in the file)", v.EventIndex)
		}

		t.writeLine("   %s  %s%s: %s%s", letter, ranklist.Ranks(v.Ranks), kind, v.Text, position)
		t.writeStack(v.Stack)
	}

	if len(d.MinorityRanks) > 0 {
		t.writeLine("   in the minority: %s", ranklist.Ranks(d.MinorityRanks))
	} else {
		t.writeLine("   no majority: the file does not show which rank is wrong")
	}

	for _, line := range d.Explanation {
		t.writeLine("   %s", line)
	}
}

// writeStack writes the lines of a call stack, at most maxLines.
func (t *textWriter) writeStack(lines []string) {
	for i, line := range lines {
		if i == maxLines {
			t.writeLine("         and %d more", len(lines)-i)
			return
		}

		t.writeLine("         %s", line)
	}
}

// writeNotes writes the notes of the report, and after them the notes of the ranks. If several
// ranks have the same note, it writes the note once, with the numbers of these ranks.
func (t *textWriter) writeNotes(r *Report) {
	ranksByNote := map[string][]int{} // numbers of the ranks with each note
	var rankNotes []string            // the distinct notes of the ranks, in order
	for _, rank := range r.Ranks {
		for _, note := range rank.Notes {
			if ranksByNote[note] == nil {
				rankNotes = append(rankNotes, note)
			}

			ranksByNote[note] = append(ranksByNote[note], rank.Rank)
		}
	}

	if len(r.Notes) > 0 || len(rankNotes) > 0 {
		t.writeLine("\nNotes:")
	}

	for _, note := range r.Notes {
		t.writeLine("  %s", note)
	}

	for i, note := range rankNotes {
		if i == maxLines {
			t.writeLine("  and %d more notes", len(rankNotes)-i)
			return
		}

		t.writeLine("  %s: %s", ranklist.Ranks(ranksByNote[note]), history.MakePrintable(note))
	}
}
