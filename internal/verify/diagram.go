package verify

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// side is an observation with the ranks that share it.
type side struct {
	letter string
	what   Observation
	ranks  []int // in the group, ascending
}

// draw writes where ranks differ, with a map of who has what:
//
//	Divergence in group world, pool 7, at event 9: all before it is the same on every rank.
//
//	   rank  0 1 2 3
//	    has  A A B A
//	             ^      deviates from the majority
//
//	  A  ranks 0-1,3   alloc 1048576 B (stream 0) -> segment 0 offset 0x0
//	  B  rank 2        alloc 1048576 B (stream 0) -> segment 1 offset 0x0
func (d *Divergence) draw(b *bytes.Buffer) {
	sides := d.sides()
	fmt.Fprintf(b, "Divergence in group %s%s\n\n", d.Group, d.where())
	if n := len(d.Ranks); n <= mapRanks {
		d.drawMap(b, sides)
	}
	width := 0
	for _, s := range sides {
		width = max(width, len(named(s.ranks)))
	}
	for _, s := range sides {
		fmt.Fprintf(b, "  %s  %-*s  %s", s.letter, width, named(s.ranks), s.what.Event)
		if s.what.Site != "" {
			fmt.Fprintf(b, "  at %s", s.what.Site)
		}
		b.WriteByte('\n')
	}
	if d.Why != "" && d.Why != "unknown" {
		fmt.Fprintf(b, "\n  kind of difference: %s\n", d.Why)
	}
	if d.Group != "world" {
		fmt.Fprintf(b, "\n  ranks are numbered in the group; in the world they are %s\n",
			spans(d.Members))
	}
}

// mapRanks is how many ranks fit a map.
const mapRanks = 24

func (d *Divergence) where() string {
	if d.Kind != "placement" {
		return fmt.Sprintf(" (%s)", d.Kind)
	}
	return fmt.Sprintf(", pool %d, at event %d: all before it is the same on every rank.",
		d.Pool, d.Position)
}

func (d *Divergence) drawMap(b *bytes.Buffer, sides []side) {
	numbers, letters, marks := "   rank ", "    has ", "        "
	for _, rank := range d.numbers() {
		width := len(strconv.Itoa(rank)) + 1
		at := slices.IndexFunc(sides, func(s side) bool { return slices.Contains(s.ranks, rank) })
		mark := ""
		if slices.Contains(d.Deviant, rank) {
			mark = "^"
		}
		numbers += fmt.Sprintf("%*d", width, rank)
		letters += fmt.Sprintf("%*s", width, sides[at].letter)
		marks += fmt.Sprintf("%*s", width, mark)
	}
	fmt.Fprintf(b, "%s\n%s\n", numbers, letters)
	if len(d.Deviant) > 0 {
		fmt.Fprintf(b, "%s  deviates from the majority\n", marks)
	} else {
		fmt.Fprintf(b, "%s  no majority\n", strings.TrimRight(marks, " "))
	}
	b.WriteByte('\n')
}

// numbers are the ranks of the group that were observed, ascending.
func (d *Divergence) numbers() []int {
	var all []int
	for text := range d.Ranks {
		if rank, err := strconv.Atoi(text); err == nil {
			all = append(all, rank)
		}
	}
	slices.Sort(all)
	return all
}

// sides groups the ranks by what they have, lettered in the order of their lowest ranks.
func (d *Divergence) sides() []side {
	var sides []side
	for _, rank := range d.numbers() {
		what := d.Ranks[strconv.Itoa(rank)]
		at := slices.IndexFunc(sides, func(s side) bool { return s.what == what })
		if at < 0 {
			at = len(sides)
			sides = append(sides, side{letter: letter(at), what: what})
		}
		sides[at].ranks = append(sides[at].ranks, rank)
	}
	return sides
}

// letter names the sides A to Z; there are never more than a report keeps apart.
func letter(i int) string { return string(rune('A' + i%26)) }

func named(ranks []int) string {
	if len(ranks) == 1 {
		return "rank " + spans(ranks)
	}
	return "ranks " + spans(ranks)
}
