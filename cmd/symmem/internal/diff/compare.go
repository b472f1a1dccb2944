package diff

import (
	"fmt"
	"slices"
	"sort"

	"symmem/cmd/symmem/internal/diff/history"
	"symmem/internal/ranklist"
)

// Compare compares the histories of ranks, which must be sorted by format.
func Compare(ranks []*history.Rank, o Options) *Report {
	r := &Report{Sequences: []Sequence{}, Notes: []string{}}
	for _, rank := range ranks {
		info := RankInfo{
			Rank: rank.Number, File: rank.File, Format: rank.Format,
			Notes: append([]string{}, rank.Notes...),
		}
		for _, s := range rank.Sequences {
			info.Events += len(s.Events)
		}
		r.Ranks = append(r.Ranks, info)
	}
	r.Agree = true
	for _, same := range byFormat(ranks) {
		r.compare(same, o)
	}
	indexes := map[*history.Rank]int{}
	for i, rank := range ranks {
		indexes[rank] = i
	}
	for _, s := range r.Sequences {
		for i := range s.Members {
			s.Members[i].Rank = indexes[s.Members[i].History]
		}
	}
	return r
}

// byFormat splits a list of ranks, which is sorted by format, into one list per format.
func byFormat(ranks []*history.Rank) [][]*history.Rank {
	var all [][]*history.Rank
	for i, rank := range ranks {
		if i == 0 || rank.Format != ranks[i-1].Format {
			all = append(all, nil)
		}
		all[len(all)-1] = append(all[len(all)-1], rank)
	}
	return all
}

func (r *Report) compare(ranks []*history.Rank, o Options) {
	matches, notes := matchSequences(ranks, o)
	r.Notes = append(r.Notes, notes...)
	found := make([]*comparison, 0, len(matches))
	for _, m := range matches {
		if world := ranks[0].World; world > 1 {
			m.title += fmt.Sprintf(" (world %d)", world)
		}
		c := newComparison(ranks, m)
		c.run()
		found = append(found, c)
	}
	findOtherPools(found)
	for _, c := range found {
		r.Agree = r.Agree && c.result.Requests == nil && c.result.Places == nil
		r.Sequences = append(r.Sequences, c.result)
	}
}

type comparison struct {
	match   *match
	members []int // indexes of ranks
	views   []*view
	numbers []int // rank numbers of the members
	result  Sequence
}

func newComparison(ranks []*history.Rank, m *match) *comparison {
	c := &comparison{match: m, members: m.members(ranks)}
	c.result = Sequence{Title: m.title, Class: m.class, Notes: []string{}}
	known := texts{}
	skips := m.starts(c.members)
	for i, r := range c.members {
		c.views = append(c.views, newView(ranks[r], m.sequences[r], skips[i], known))
		c.numbers = append(c.numbers, ranks[r].Number)
		c.result.Members = append(c.result.Members, Member{
			History: ranks[r], Sequence: m.sequences[r], Skipped: skips[i],
		})
	}
	c.result.Ranks = c.numbers
	for i, n := range skips {
		if n > 0 {
			c.result.Notes = append(c.result.Notes, fmt.Sprintf(
				"rank %d has %s before the beginning of the others, which are left out",
				c.numbers[i], ranklist.Plural(n, "request")))
		}
	}
	return c
}

func (c *comparison) run() {
	if len(c.views) < 2 {
		return
	}
	equal, longest := len(c.views[0].keys), 0
	for _, v := range c.views {
		equal = min(equal, c.views[0].commonPrefix(v))
		longest = max(longest, len(v.keys))
	}
	c.result.Equal = equal
	if equal < longest {
		c.result.Requests = c.requestDifference(equal)
	}
	c.comparePlaces(equal)
	c.replay()
}

// group lists the indexes of members that have the same event.
type group []int

// groupsAt splits the members into groups that have the same event, with the largest group
// first. same reports whether members i and j have the same event.
func (c *comparison) groupsAt(same func(i, j int) bool) []group {
	var groups []group
next:
	for i := range c.views {
		for g := range groups {
			if same(groups[g][0], i) {
				groups[g] = append(groups[g], i)
				continue next
			}
		}
		groups = append(groups, group{i})
	}
	sort.SliceStable(groups, func(i, j int) bool { return len(groups[i]) > len(groups[j]) })
	return groups
}

func (c *comparison) ranks(g group) []int {
	var all []int
	for _, i := range g {
		all = append(all, c.numbers[i])
	}
	return all
}

// blamed returns the ranks that deviate from the majority, or an empty list if there is no
// majority.
func (c *comparison) blamed(groups []group) []int {
	blamed := []int{}
	if 2*len(groups[0]) <= len(c.views) || len(c.views) < 3 {
		return blamed
	}
	for _, g := range groups[1:] {
		blamed = append(blamed, c.ranks(g)...)
	}
	slices.Sort(blamed)
	return blamed
}

func (c *comparison) requestDifference(at int) *Difference {
	groups := c.groupsAt(func(i, j int) bool {
		a, b := c.views[i], c.views[j]
		if at >= len(a.keys) || at >= len(b.keys) {
			return at >= len(a.keys) && at >= len(b.keys)
		}
		return a.keys[at] == b.keys[at]
	})
	d := &Difference{
		Index: at, Blamed: c.blamed(groups), Before: c.before(groups[0][0], at), Explanation: []string{},
	}
	reference := groups[0][0]
	for n, g := range groups {
		v := c.variant(g, at)
		if n > 0 {
			edits := editsFrom(c.views[reference], c.views[g[0]], at)
			v.Kind = edits[0].kind
			d.Explanation = append(d.Explanation, c.explain(g, reference, edits))
		}
		d.Variants = append(d.Variants, v)
	}
	d.Kind = d.Variants[1].Kind
	return d
}

// editsFrom returns the differences between two views that first differ at request at. An aligner
// ignores some differences between frees: those in the sizes of frees of the same block, and those
// between frees of unknown blocks. If the aligner finds no other differences, editsFrom returns a
// single one that describes request at.
func editsFrom(reference, other *view, at int) []edit {
	a := newAligner(reference, other)
	edits := a.run()
	if len(edits) > 0 {
		return edits
	}
	kind := KindExtra
	switch {
	case at >= len(other.keys):
		kind = KindMissing
	case at < len(reference.keys):
		kind = a.substitution(at, at)
	}
	return []edit{{kind, at, at}}
}

// variant describes request at on the members of a group.
func (c *comparison) variant(g group, at int) Variant {
	v := c.views[g[0]]
	variant := Variant{Ranks: c.ranks(g), Number: -1, Text: "nothing: the trace ends here"}
	if e := v.event(at); e != nil {
		variant.Number, variant.Text = e.Number, requestText(v.rank, v.keys[at], e)
		variant.Stack = v.rank.Stack(e)
	}
	if variant.Stack == nil {
		variant.Stack = []string{}
	}
	return variant
}

func requestText(r *history.Rank, k key, e *history.Event) string {
	text := r.Text(e)
	switch {
	case k.action == history.Free && k.block < 0:
		text += " of a block that is older than the trace"
	case k.action == history.Free:
		text += fmt.Sprintf(" of allocation %d", k.block)
	}
	return text
}

// before describes up to five requests that precede request at.
func (c *comparison) before(member, at int) []string {
	lines := []string{}
	v := c.views[member]
	for i := max(0, at-5); i < min(at, len(v.keys)); i++ {
		lines = append(lines, fmt.Sprintf("%d: %s", i, requestText(v.rank, v.keys[i], v.event(i))))
	}
	return lines
}

// explain states whether the first difference explains the rest or, if not, where the next one is.
func (c *comparison) explain(g group, reference int, edits []edit) string {
	v := c.views[g[0]]
	who := fmt.Sprintf("%s against rank %d", ranklist.Ranks(c.ranks(g)), c.numbers[reference])
	first := edits[0]
	switch {
	case len(edits) == 1:
		rest := max(len(v.keys)-first.other-1, 0)
		return fmt.Sprintf("%s: this one difference (%s) explains the rest; %s after it.",
			who, first.kind, countEqual(rest))
	case len(edits) >= maxEdits:
		return fmt.Sprintf("%s: more than %d differences follow.", who, maxEdits)
	}
	next := edits[1]
	return fmt.Sprintf("%s: %s in all; the next (%s) is request %d, after %s that agree.",
		who, ranklist.Plural(len(edits), "difference"), next.kind, next.other,
		ranklist.Plural(max(next.other-first.other-1, 0), "request"))
}

func countEqual(n int) string {
	if n == 0 {
		return "nothing follows"
	}
	return ranklist.Plural(n, "request") + " agree"
}

// findOtherPools finds requests that some ranks made in the wrong pool, and changes the kind of
// their differences to KindPool. On these ranks, such a request is missing in one pool and extra
// in another.
func findOtherPools(all []*comparison) {
	for _, a := range all {
		for _, b := range all {
			if a != b && samePoolMove(a, b) {
				a.result.Requests.Kind, b.result.Requests.Kind = KindPool, KindPool
				a.result.Requests.Variants[1].Kind = KindPool
				b.result.Requests.Variants[1].Kind = KindPool
			}
		}
	}
}

// samePoolMove reports whether a request that is missing on some ranks in a is extra on the same
// ranks in b.
func samePoolMove(a, b *comparison) bool {
	da, db := a.result.Requests, b.result.Requests
	if da == nil || db == nil || da.Kind != KindMissing || db.Kind != KindExtra {
		return false
	}
	va, vb := da.Variants[1], db.Variants[1]
	if !slices.Equal(va.Ranks, vb.Ranks) {
		return false
	}
	lacking := a.views[index(a.numbers, da.Variants[0].Ranks[0])]
	having := b.views[index(b.numbers, vb.Ranks[0])]
	if da.Index >= len(lacking.keys) || db.Index >= len(having.keys) {
		return false
	}
	x, y := lacking.keys[da.Index], having.keys[db.Index]
	return x.action == y.action && x.size == y.size
}

func index(all []int, n int) int { return slices.Index(all, n) }
