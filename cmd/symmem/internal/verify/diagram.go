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

type diagram struct{ *symmem.DivergenceError }

// side holds what a set of ranks observed, and the letter for these ranks in the map.
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
	if d.Why != "" && d.Why != "unknown" {
		fmt.Fprintf(b, "\n  kind of difference: %s\n", d.Why)
	}
	if !driver.NumberedAsWorld(d.Members) {
		fmt.Fprintf(b, "\n  rank numbers are those of the world; the group has the ranks %s, "+
			"in this order\n", driver.Spans(d.Members))
	}
}

const maxMapRanks = 24 // with more ranks, there is no map

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
	rankLine, letterLine, markLine := "   rank ", "    has ", "        "
	for _, rank := range d.ranks() {
		width := len(strconv.Itoa(rank)) + 1
		index := slices.IndexFunc(sides, func(s side) bool { return slices.Contains(s.Ranks, rank) })
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

func (d diagram) ranks() []int { return slices.Sorted(maps.Keys(d.Ranks())) }

func (d diagram) sides() []side {
	ordered := slices.Clone(d.Sides)
	slices.SortFunc(ordered, func(a, b symmem.Side) int { return slices.Compare(a.Ranks, b.Ranks) })
	sides := make([]side, len(ordered))
	for i, s := range ordered {
		sides[i] = side{letter: letter(i), Side: s}
	}
	return sides
}

// letter returns the letter of side i: A, B and so on. No report has more than 26 sides.
func letter(i int) string { return string(rune('A' + i%26)) }
