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

// diagram formats an error that says how ranks differ.
type diagram struct{ *symmem.DivergenceError }

// side holds what a set of ranks observed, such as an allocation. It also holds the letter for
// these ranks in the map.
type side struct {
	letter string
	symmem.Side
}

// write writes what the ranks observed at the divergence, and a map of the ranks:
//
//	Divergence in group world, pool 7, at event 9: earlier events are the same on every rank.
//
//	   rank  0 1 2 3
//	    has  A A B A
//	             ^      deviates from the majority
//
//	  A  ranks 0-1,3   alloc 1048576 B (stream 0) -> segment 0 offset 0x0
//	  B  rank 2        alloc 1048576 B (stream 0) -> segment 1 offset 0x0
func (d diagram) write(b *bytes.Buffer) {
	sides := d.sides()
	fmt.Fprintf(b, "Divergence in group %s%s\n\n", d.Group, d.describePosition())
	if len(d.Ranks()) <= maxMapRanks {
		d.writeMap(b, sides)
	}

	listWidth := 0 // of the longest list of ranks
	for _, s := range sides {
		listWidth = max(listWidth, len(driver.Ranks(s.Ranks)))
	}

	for _, s := range sides {
		fmt.Fprintf(b, "  %s  %-*s  %s", s.letter, listWidth, driver.Ranks(s.Ranks), s.Event)
		if s.Site != "" {
			fmt.Fprintf(b, "  at %s", s.Site)
		}

		b.WriteByte('\n')
	}

	if d.Why != "" && d.Why != "unknown" {
		fmt.Fprintf(b, "\n  kind of difference: %s\n", d.Why)
	}

	if !driver.NumberedAsWorld(d.Members) {
		fmt.Fprintf(b, "\n  rank numbers are those of the world; the group has the ranks %s, "+
			"in this order\n", driver.Spans(d.Members))
	}
}

// maxMapRanks is the largest number of ranks for which there is a map. Its columns must fit on a
// line.
const maxMapRanks = 24

// describePosition says where ranks differ, if the error is about a pool. For other errors, it
// returns the kind of the divergence.
func (d diagram) describePosition() string {
	if d.Kind != symmem.DivergedPlacement {
		return fmt.Sprintf(" (%s)", d.Kind)
	}

	return fmt.Sprintf(", %s, at event %d: earlier events are the same on every rank.",
		d.Pool, d.Position)
}

// writeMap writes three lines with a column for each rank: its number, the letter of its side, and
// a mark if the rank deviates from the majority.
func (d diagram) writeMap(b *bytes.Buffer, sides []side) {
	rankLine := "   rank "
	letterLine := "    has "
	markLine := "        "
	for _, rank := range d.sortedRanks() {
		width := len(strconv.Itoa(rank)) + 1 // of the column
		hasRank := func(s side) bool { return slices.Contains(s.Ranks, rank) }
		index := slices.IndexFunc(sides, hasRank) // exists, because Ranks is the union of the sides
		mark := ""
		if slices.Contains(d.Deviant, rank) {
			mark = "^"
		}

		rankLine += fmt.Sprintf("%*d", width, rank)
		letterLine += fmt.Sprintf("%*s", width, sides[index].letter)
		markLine += fmt.Sprintf("%*s", width, mark)
	}

	fmt.Fprintf(b, "%s\n%s\n", rankLine, letterLine)
	if len(d.Deviant) > 0 {
		fmt.Fprintf(b, "%s  deviates from the majority\n", markLine)
	} else {
		fmt.Fprintf(b, "%s  no majority\n", strings.TrimRight(markLine, " "))
	}

	b.WriteByte('\n')
}

func (d diagram) sortedRanks() []int { return slices.Sorted(maps.Keys(d.Ranks())) }

// sides returns the sides of the error in the order of their lowest ranks.
func (d diagram) sides() []side {
	ordered := slices.Clone(d.Sides)
	slices.SortFunc(ordered, func(a, b symmem.Side) int { return slices.Compare(a.Ranks, b.Ranks) })
	sides := make([]side, len(ordered))
	for i, s := range ordered {
		sides[i] = side{letter: letter(i), Side: s}
	}

	return sides
}

// letter returns the letter of side i: A, B and so on. An error has at most 16 sides.
func letter(i int) string { return string(rune('A' + i%26)) }
