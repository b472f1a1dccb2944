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

// diagram formats an error about ranks that diverged: they did different things where all ranks
// should do the same. For example, rank 2 put a buffer into another segment (piece of memory) than
// ranks 0, 1 and 3:
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

// side is a letter in the diagram, such as B, with its ranks and what they did.
type side struct {
	letter string
	symmem.Side
}

// write writes the text of the diagram.
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

// sides returns the sides of the error in the order of their lowest ranks. If the error does not
// list what some ranks did, these ranks form a last side with the letter "?".
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

// letter returns the letter of side i: A, B and so on. An error has at most 16 sides.
func letter(i int) string { return string(rune('A' + i%26)) }

// describePosition returns the end of the first line. If the ranks have different histories of a
// pool, it contains the pool and the first event that differs. Otherwise, it contains the kind of
// the divergence.
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

// maxMapRanks is the largest number of ranks for which there is a map. Its columns must fit on a
// line.
const maxMapRanks = 24

// writeMap writes three lines with a column for each rank: its number, the letter of its side, and
// a mark if the rank is among deviant, the ranks that deviate from the majority.
func writeMap(b *bytes.Buffer, sides []side, deviant []int) {
	rankLine := "   rank "
	letterLine := "    has "
	markLine := "        "
	for _, rank := range ranksOf(sides) {
		hasRank := func(s side) bool { return slices.Contains(s.Ranks, rank) }
		index := slices.IndexFunc(sides, hasRank) // found, because rank is from a side
		mark := ""
		if slices.Contains(deviant, rank) {
			mark = "^"
		}

		const gap = 1
		width := gap + len(strconv.Itoa(rank))
		rankLine += fmt.Sprintf("%*d", width, rank)
		letterLine += fmt.Sprintf("%*s", width, sides[index].letter)
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

// writeSides writes a line for each side: the letter, the ranks, what they did and, if it is known,
// the source line of the call.
func writeSides(b *bytes.Buffer, sides []side) {
	width := 0 // of the longest list of ranks
	for _, s := range sides {
		width = max(width, len(driver.Ranks(s.Ranks)))
	}

	for _, s := range sides {
		fmt.Fprintf(b, "  %s  %-*s  %s", s.letter, width, driver.Ranks(s.Ranks), s.Event)
		if s.Site != "" {
			fmt.Fprintf(b, "  at %s", s.Site)
		}

		b.WriteByte('\n')
	}
}
