package verify

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"symmem"
	"symmem/driver"
)

// diagram formats the error of ranks that diverged. Here, rank 2 placed a buffer in another segment
// of memory than ranks 0, 1 and 3:
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

// side is a set of ranks with the same event, shown under one letter such as B.
type side struct {
	letter string
	symmem.Side
}

func (d diagram) write(b *bytes.Buffer) {
	sides := d.sides()
	fmt.Fprintf(b, "Divergence in group %s%s\n\n", d.Group, d.describePosition())
	if len(ranksOf(sides)) <= maxMapRanks {
		writeMap(b, sides, d.Deviant)
	}

	writeSides(b, sides)
	if d.Why != "" && d.Why != "unknown" {
		fmt.Fprintf(b, "\n  kind of difference: %s\n", d.Why)
	}

	if !driver.NumberedAsWorld(d.Members) {
		fmt.Fprintf(b, "\n  rank numbers are those of the world; the group has the ranks %s, "+
			"in this order\n", driver.Spans(d.Members))
	}
}

// sides returns the sides of the error, sorted by their lowest rank. Ranks whose event the error
// does not list form a last side, "?".
func (d diagram) sides() []side {
	ordered := slices.Clone(d.Sides)
	slices.SortFunc(ordered, func(a, b symmem.Side) int { return slices.Compare(a.Ranks, b.Ranks) })
	var sides []side
	for i, s := range ordered {
		sides = append(sides, side{letter: letter(i), Side: s})
	}

	if len(d.Others) > 0 {
		others := symmem.Side{Ranks: d.Others, Event: "something else"}
		sides = append(sides, side{letter: "?", Side: others})
	}

	return sides
}

// letter returns the letter of side i. An error has at most 16 sides.
func letter(i int) string { return string(rune('A' + i%26)) }

// describePosition returns where ranks diverged: the pool and the first event that differs or, if
// the divergence is not about the placement of buffers, its kind.
func (d diagram) describePosition() string {
	if d.Kind != symmem.DivergedPlacement {
		return fmt.Sprintf(" (%s)", d.Kind)
	}

	isRange := d.Last > 0
	if isRange {
		return fmt.Sprintf(", %s, at one of the events %d to %d.", d.Pool, d.Position, d.Last)
	}

	return fmt.Sprintf(", %s, at event %d: earlier events are the same on every rank.",
		d.Pool, d.Position)
}

const maxMapRanks = 24 // more columns may not fit on a line

// writeMap writes three lines with a column for each rank: its number, the letter of its side, and
// a mark if it is deviant.
func writeMap(b *bytes.Buffer, sides []side, deviant []int) {
	rankLine := "   rank "
	letterLine := "    has "
	markLine := "        "
	for _, rank := range ranksOf(sides) {
		mark := ""
		if slices.Contains(deviant, rank) {
			mark = "^"
		}

		const gap = 1
		width := gap + len(strconv.Itoa(rank))
		rankLine += fmt.Sprintf("%*d", width, rank)
		letterLine += fmt.Sprintf("%*s", width, letterOf(rank, sides))
		markLine += fmt.Sprintf("%*s", width, mark)
	}

	fmt.Fprintf(b, "%s\n%s\n", rankLine, letterLine)
	hasMajority := len(deviant) > 0
	if hasMajority {
		fmt.Fprintf(b, "%s  deviates from the majority\n", markLine)
	} else {
		fmt.Fprintf(b, "%s  no majority\n", strings.TrimRight(markLine, " "))
	}

	b.WriteByte('\n')
}

// letterOf returns the letter of the side that contains rank, which must exist.
func letterOf(rank int, sides []side) string {
	hasRank := func(s side) bool { return slices.Contains(s.Ranks, rank) }
	return sides[slices.IndexFunc(sides, hasRank)].letter
}

// ranksOf returns the ranks of all sides in ascending order.
func ranksOf(sides []side) []int {
	ranks := map[int]bool{}
	for _, s := range sides {
		for _, rank := range s.Ranks {
			ranks[rank] = true
		}
	}

	return slices.Sorted(maps.Keys(ranks))
}

// writeSides writes a line for each side: letter, ranks, event and, if known, source line.
func writeSides(b *bytes.Buffer, sides []side) {
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
