package verify

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"

	"symmem"
	"symmem/driver"
)

// diagram formats the error of ranks that diverged. Here, rank 2 placed a buffer in segment 1,
// and the other ranks in segment 0:
//
//	Divergence in group world, pool 7, at event 9: earlier events are the same on every rank.
//
//	   rank  0 1 2 3
//	    has  A A B A
//	             ^      deviates from the majority
//
//	  A  ranks 0-1,3   alloc 1048576 B (stream 0) -> segment 0 offset 0x0
//	  B  rank 2        alloc 1048576 B (stream 0) -> segment 1 offset 0x0
type diagram struct{ *symmem.DivergenceError }

const maxColumns = 24 // more may not fit on a line

// labeledSide holds ranks with the same event, and the letter that stands for the event.
type labeledSide struct {
	letter string
	symmem.Side
}

func (d diagram) write(b *bytes.Buffer) {
	sides := d.sides()
	fmt.Fprintf(b, "Divergence in group %s%s\n\n", d.Group, d.describePosition())
	if len(ranksOf(sides)) <= maxColumns {
		writeColumns(b, sides, d.Deviant)
	}

	writeSides(b, sides)
	isExplained := d.Why != "" && d.Why != "unknown"
	if isExplained {
		fmt.Fprintf(b, "\n  kind of difference: %s\n", d.Why)
	}

	if !driver.NumberedAsWorld(d.Members) {
		fmt.Fprintf(b, "\n  rank numbers are those of the world; the group has the ranks %s, "+
			"in this order\n", driver.Spans(d.Members))
	}
}

// sides returns the sides, sorted by their lowest rank. If the error omits the events of some
// ranks, these ranks form a last side "?".
func (d diagram) sides() []labeledSide {
	ordered := slices.Clone(d.Sides)
	slices.SortFunc(ordered, func(a, b symmem.Side) int { return slices.Compare(a.Ranks, b.Ranks) })
	var sides []labeledSide
	for i, s := range ordered {
		sides = append(sides, labeledSide{letter: letter(i), Side: s})
	}

	if len(d.Others) > 0 {
		others := symmem.Side{Ranks: d.Others, Event: "something else"}
		sides = append(sides, labeledSide{letter: "?", Side: others})
	}

	return sides
}

// letter returns the letter of side i. Letters repeat after Z, but errors have at most 16 sides.
func letter(i int) string { return string(rune('A' + i%26)) }

// describePosition returns the pool and the first event that differs. A divergence other than
// placement has no position, so describePosition returns its kind.
func (d diagram) describePosition() string {
	if d.Kind != symmem.DivergedPlacement {
		return fmt.Sprintf(" (%s)", d.Kind)
	}

	isRange := d.Last != 0
	if isRange {
		return fmt.Sprintf(", %s, at one of the events %d to %d.", d.Pool, d.Position, d.Last)
	}

	return fmt.Sprintf(", %s, at event %d: earlier events are the same on every rank.",
		d.Pool, d.Position)
}

// writeColumns writes three lines with a column for each rank: its number, the letter of its side,
// and a mark if it deviates from the majority.
func writeColumns(b *bytes.Buffer, sides []labeledSide, deviant []int) {
	rankLine := "   rank "
	letterLine := "    has "
	markLine := "        "
	const gap = 1
	for _, rank := range ranksOf(sides) {
		mark := ""
		if slices.Contains(deviant, rank) {
			mark = "^"
		}

		width := gap + len(strconv.Itoa(rank))
		rankLine += fmt.Sprintf("%*d", width, rank)
		letterLine += fmt.Sprintf("%*s", width, letterOf(rank, sides))
		markLine += fmt.Sprintf("%*s", width, mark)
	}

	fmt.Fprintf(b, "%s\n%s\n", rankLine, letterLine)
	if len(deviant) > 0 {
		fmt.Fprintf(b, "%s  deviates from the majority\n\n", markLine)
	} else {
		b.WriteString("  no majority\n\n")
	}
}

// letterOf returns the letter of the side that contains rank.
func letterOf(rank int, sides []labeledSide) string {
	hasRank := func(s labeledSide) bool { return slices.Contains(s.Ranks, rank) }
	return sides[slices.IndexFunc(sides, hasRank)].letter
}

// ranksOf returns the ranks of all sides in ascending order.
func ranksOf(sides []labeledSide) []int {
	var ranks []int
	for _, s := range sides {
		ranks = append(ranks, s.Ranks...)
	}

	slices.Sort(ranks)
	return ranks
}

// writeSides writes a line for each side: letter, ranks, event and, if known, source line.
func writeSides(b *bytes.Buffer, sides []labeledSide) {
	ranksWidth := 0
	for _, s := range sides {
		ranksWidth = max(ranksWidth, len(driver.Ranks(s.Ranks)))
	}

	for _, s := range sides {
		fmt.Fprintf(b, "  %s  %-*s  %s", s.letter, ranksWidth, driver.Ranks(s.Ranks), s.Event)
		if s.Site != "" {
			fmt.Fprintf(b, "  at %s", s.Site)
		}

		b.WriteByte('\n')
	}
}
