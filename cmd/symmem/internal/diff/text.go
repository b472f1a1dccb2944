package diff

import (
	"bufio"
	"fmt"
	"io"

	"symmem/cmd/symmem/internal/diff/history"
	"symmem/internal/ranklist"
)

// WriteText writes the report as text. For each pool or group, it shows the first request that
// differs between ranks. In this example, rank 2 made an extra request, B:
//
//	MemPool 1, ranks 0-3:
//	  requests differ first at request 100: extra
//	      99: alloc 65536 B (stream 0)
//	   A  ranks 0-1,3: alloc 65536 B (stream 0) (event 150 in the file)
//	         model.py:61 forward
//	   B  rank 2 [extra]: alloc 12345 B (stream 0) (event 150 in the file)
//	         model.py:57 forward
//	   in the minority: rank 2
//	   rank 2 against rank 0: this one difference (extra) explains the rest; ...
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

// textWriter writes lines. Its methods ignore errors, which Flush returns.
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

// writeDifference writes a difference. The subject is "requests" or "places".
func (t *textWriter) writeDifference(subject string, d *Difference) {
	t.writeLine("  %s differ first at request %d: %s", subject, d.RequestIndex, d.Kind)
	for _, line := range d.PrecedingRequests {
		t.writeLine("      %s", line)
	}

	for i := range d.Variants {
		t.writeVariant(i, &d.Variants[i])
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

// writeVariant writes a variant, with a letter for its index, and its call stack.
func (t *textWriter) writeVariant(index int, v *Variant) {
	const letterCount = 26
	letter := string(rune('A' + index%letterCount))
	kind := ""
	if v.DifferenceKind != "" {
		kind = " [" + v.DifferenceKind + "]"
	}

	position := ""
	hasEvent := v.EventIndex >= 0
	if hasEvent {
		position = fmt.Sprintf(" (event %d in the file)", v.EventIndex)
	}

	t.writeLine("   %s  %s%s: %s%s", letter, ranklist.Ranks(v.Ranks), kind, v.Text, position)
	t.writeStack(v.Stack)
}

func (t *textWriter) writeStack(lines []string) {
	const maxLines = 12
	for i, line := range lines {
		if i == maxLines {
			t.writeLine("         and %d more", len(lines)-i)
			return
		}

		t.writeLine("         %s", line)
	}
}

// writeNotes writes the notes of the report and of the ranks. Equal notes of several ranks share a
// line, as in "ranks 0-3: some texts did not fit".
func (t *textWriter) writeNotes(r *Report) {
	ranksByNote := map[string][]int{}
	var rankNotes []string // without duplicates
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

	const maxRankNotes = 12
	for i, note := range rankNotes {
		if i == maxRankNotes {
			t.writeLine("  and %d more notes", len(rankNotes)-i)
			return
		}

		t.writeLine("  %s: %s", ranklist.Ranks(ranksByNote[note]), history.MakePrintable(note))
	}
}
