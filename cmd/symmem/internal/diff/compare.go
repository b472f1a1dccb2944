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
	r := &Report{Sequences: []SequenceResult{}, Notes: []string{}}
	for _, rank := range ranks {
		info := RankInfo{
			Rank: rank.Number, File: rank.File, Format: rank.Format,
			Notes: append([]string{}, rank.Notes...),
		}
		for _, s := range rank.Sequences {
			info.EventCount += len(s.Events)
		}

		r.Ranks = append(r.Ranks, info)
	}

	r.RanksAgree = true
	for _, sameFormat := range splitByFormat(ranks) {
		r.compare(sameFormat, o)
	}

	indexes := map[*history.Rank]int{}
	for i, rank := range ranks {
		indexes[rank] = i
	}

	for _, s := range r.Sequences {
		for i := range s.Members {
			s.Members[i].RankIndex = indexes[s.Members[i].History]
		}
	}

	return r
}

func splitByFormat(ranks []*history.Rank) [][]*history.Rank {
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
	fileNotes := checkFiles(ranks)
	r.FileNotes = append(r.FileNotes, fileNotes...)
	r.Notes = append(append(r.Notes, fileNotes...), notes...)
	found := make([]*comparison, 0, len(matches))
	for _, m := range matches {
		if world := ranks[0].World; world > 1 {
			m.title += fmt.Sprintf(" (world %d)", world)
		}

		c := newComparison(ranks, m)
		c.run()
		found = append(found, c)
	}

	findMovedRequests(found)
	for _, c := range found {
		r.RanksAgree = r.RanksAgree && c.result.RequestDifference == nil &&
			c.result.PlacementDifference == nil
		r.Sequences = append(r.Sequences, c.result)
	}
}

// comparison compares a pool or group on its members, which are the ranks that should have it.
type comparison struct {
	match   *match
	members []int          // indexes of ranks
	views   []*requestView // one for each member
	numbers []int          // rank number of each member
	result  SequenceResult
}

func newComparison(ranks []*history.Rank, m *match) *comparison {
	c := &comparison{match: m}
	c.result = SequenceResult{Title: m.title, Class: m.class, Notes: []string{}}
	var lost []int
	c.members, lost = m.memberRanks(ranks)
	for _, r := range lost {
		c.result.Notes = append(c.result.Notes, fmt.Sprintf("rank %d was not compared: the beginning of "+
			"its file is lost, and the rest has no requests", ranks[r].Number))
	}

	known := textNumbers{}
	skips, notes := m.countSkipped(ranks, c.members)
	c.result.Notes = append(c.result.Notes, notes...)
	for i, r := range c.members {
		v := newView(ranks[r], m.sequences[r], skips[i], known)
		c.views = append(c.views, v)
		c.numbers = append(c.numbers, ranks[r].Number)
		c.result.Members = append(c.result.Members, Member{
			History: ranks[r], Sequence: m.sequences[r], SkippedRequests: skips[i],
		})
	}

	c.result.Ranks = c.numbers
	for i, n := range skips {
		if n > 0 {
			c.result.Notes = append(c.result.Notes, fmt.Sprintf(
				"rank %d has %s from before the other traces began, which were not compared",
				c.numbers[i], ranklist.Plural(n, "request")))
		}
	}

	return c
}

// isPartial reports whether the trace of a rank may lack its beginning.
func (m *match) isPartial(rankIndex int) bool {
	s := m.sequences[rankIndex]
	return s != nil && s.IsPartial
}

func (c *comparison) run() {
	if len(c.views) < 2 {
		return
	}

	equal, longest := len(c.views[0].keys), 0
	for _, v := range c.views {
		equal = min(equal, c.views[0].equalPrefixLength(v))
		longest = max(longest, len(v.keys))
	}

	c.result.EqualRequests = equal
	if equal < longest {
		c.result.RequestDifference = c.requestDifference(equal)
	}

	c.comparePlaces(equal)
	c.replayRequests()
}

// subset lists the members that have the same event.
type subset []int

// split splits the members into subsets, with the largest one first. same reports whether members i
// and j belong to the same subset.
func (c *comparison) split(same func(i, j int) bool) []subset {
	var subsets []subset
next:
	for i := range c.views {
		for s := range subsets {
			if same(subsets[s][0], i) {
				subsets[s] = append(subsets[s], i)
				continue next
			}
		}

		subsets = append(subsets, subset{i})
	}

	sort.SliceStable(subsets, func(i, j int) bool { return len(subsets[i]) > len(subsets[j]) })
	return subsets
}

func (c *comparison) ranks(s subset) []int {
	var all []int
	for _, i := range s {
		all = append(all, c.numbers[i])
	}

	return all
}

// minorityRanks returns the ranks that deviate from the majority. Without a majority, the list is
// empty.
func (c *comparison) minorityRanks(subsets []subset) []int {
	minority := []int{}
	if 2*len(subsets[0]) <= len(c.views) || len(c.views) < 3 {
		return minority
	}

	for _, s := range subsets[1:] {
		minority = append(minority, c.ranks(s)...)
	}

	slices.Sort(minority)
	return minority
}

func (c *comparison) requestDifference(request int) *Difference {
	subsets := c.split(func(i, j int) bool {
		a, b := c.views[i], c.views[j]
		if request >= len(a.keys) || request >= len(b.keys) {
			return request >= len(a.keys) && request >= len(b.keys)
		}

		return a.keys[request] == b.keys[request]
	})
	d := &Difference{
		RequestIndex: request, MinorityRanks: c.minorityRanks(subsets),
		PrecedingRequests: c.precedingRequests(subsets[0][0], request),
		Explanation:       []string{},
	}
	reference := subsets[0][0]
	for n, s := range subsets {
		v := c.variant(s, request)
		if n > 0 {
			edits := findEdits(c.views[reference], c.views[s[0]], request)
			v.DifferenceKind = edits[0].kind
			d.Explanation = append(d.Explanation, c.explain(s, reference, edits))
		}

		d.Variants = append(d.Variants, v)
	}

	d.Kind = d.Variants[1].DifferenceKind
	return d
}

// findEdits returns the differences between two views, which first differ at the given request. The
// aligner ignores some differences between frees. If it finds none, findEdits returns one edit for
// the request.
func findEdits(reference, other *requestView, request int) []edit {
	a := newAligner(reference, other)
	edits := a.run()
	if len(edits) > 0 {
		return edits
	}

	kind := KindExtra
	switch {
	case request >= len(other.keys):
		kind = KindMissing
	case request < len(reference.keys):
		kind = a.substitutionKind(request, request)
	}

	return []edit{{kind, request, request}}
}

// variant describes the request on the members of a subset.
func (c *comparison) variant(s subset, request int) Variant {
	v := c.views[s[0]]
	variant := Variant{Ranks: c.ranks(s), EventIndex: -1, Text: "nothing: the trace ends here"}
	if e := v.eventOf(request); e != nil {
		variant.EventIndex, variant.Text = e.Number, requestText(v.rank, v.keys[request], e)
		variant.Stack = v.rank.StackLines(e)
	}

	if variant.Stack == nil {
		variant.Stack = []string{}
	}

	return variant
}

func requestText(r *history.Rank, k requestKey, e *history.Event) string {
	text := r.EventText(e)
	switch {
	case k.action == history.Free && k.block < 0:
		text += " of a block that is older than the trace"
	case k.action == history.Free:
		text += fmt.Sprintf(" of allocation %d", k.block)
	}

	return text
}

// precedingRequests describes up to five requests that precede the request.
func (c *comparison) precedingRequests(member, request int) []string {
	lines := []string{}
	v := c.views[member]
	for i := max(0, request-5); i < min(request, len(v.keys)); i++ {
		lines = append(lines, fmt.Sprintf("%d: %s", i, requestText(v.rank, v.keys[i], v.eventOf(i))))
	}

	return lines
}

// explain states whether the first difference explains the rest or, if not, where the next one is.
func (c *comparison) explain(s subset, reference int, edits []edit) string {
	v := c.views[s[0]]
	compared := fmt.Sprintf("%s against rank %d", ranklist.Ranks(c.ranks(s)), c.numbers[reference])
	first, end := edits[0], len(c.views[reference].keys)
	switch {
	case len(edits) > 1 && first.otherPos >= len(v.keys):
		return fmt.Sprintf("%s: the trace ends here; that of rank %d has %d more requests.", compared,
			c.numbers[reference], end-first.refPos)
	case len(edits) > 1 && first.refPos >= end:
		return fmt.Sprintf("%s: the trace of rank %d ends here; this one has %d more requests.", compared,
			c.numbers[reference], len(v.keys)-first.otherPos)
	case len(edits) == 1:
		rest := "no request follows"
		if n := len(v.keys) - first.otherPos - 1; n > 0 {
			rest = ranklist.Plural(n, "request") + " agree after it"
		}

		return fmt.Sprintf("%s: this one difference (%s) explains the rest; %s.",
			compared, first.kind, rest)
	case len(edits) >= maxEdits:
		return fmt.Sprintf("%s: at least %d differences in all.", compared, maxEdits)
	}

	next := edits[1]
	return fmt.Sprintf("%s: %s in all; the next (%s) is request %d, after %s that agree.",
		compared, ranklist.Plural(len(edits), "difference"), next.kind, next.otherPos,
		ranklist.Plural(max(next.otherPos-first.otherPos-1, 0), "request"))
}

// findMovedRequests finds requests that are missing in one pool because the same ranks made them in
// another pool. It changes the kind of both differences to KindPool.
func findMovedRequests(all []*comparison) {
	for _, a := range all {
		for _, b := range all {
			if a != b && hasMovedRequest(a, b) {
				a.result.RequestDifference.Kind, b.result.RequestDifference.Kind = KindPool, KindPool
				a.result.RequestDifference.Variants[1].DifferenceKind = KindPool
				b.result.RequestDifference.Variants[1].DifferenceKind = KindPool
			}
		}
	}
}

// hasMovedRequest reports whether a request that is missing in a is extra in b on the same ranks.
func hasMovedRequest(a, b *comparison) bool {
	da, db := a.result.RequestDifference, b.result.RequestDifference
	if da == nil || db == nil || da.Kind != KindMissing || db.Kind != KindExtra {
		return false
	}

	va, vb := da.Variants[1], db.Variants[1]
	if !slices.Equal(va.Ranks, vb.Ranks) {
		return false
	}

	expected := a.views[slices.Index(a.numbers, da.Variants[0].Ranks[0])]
	found := b.views[slices.Index(b.numbers, vb.Ranks[0])]
	if da.RequestIndex >= len(expected.keys) || db.RequestIndex >= len(found.keys) {
		return false
	}

	e, f := expected.keys[da.RequestIndex], found.keys[db.RequestIndex]
	return e.action == f.action && e.size == f.size
}
