package diff

import (
	"strings"

	"symmem/cmd/symmem/internal/diff/history"
)

// Kinds of differences.
const (
	KindSize    = "different size"
	KindMissing = "missing"
	KindExtra   = "extra"
	KindOrder   = "different order"
	KindPlace   = "different place"
	KindStream  = "different stream"
	KindPool    = "different pool"
	KindCall    = "different call"
)

const (
	lookahead = 64   // number of later requests on which an explanation is tested
	maxEdits  = 1000 // number of differences after which an aligner stops
)

// edit describes a difference. Positions are indexes of requests.
type edit struct {
	kind             string
	refPos, otherPos int
}

// aligner finds the edits that turn the requests of one rank (reference) into those of another.
type aligner struct {
	reference, other *requestView
	partner          []int32 // corresponding block of reference, by block of other
	hasPartner       []bool  // whether there is a corresponding block, by block of reference
	refPos, otherPos int     // position of the comparison
	edits            []edit
}

const noPartner = -2

func newAligner(reference, other *requestView) *aligner {
	a := &aligner{reference: reference, other: other}
	a.partner = make([]int32, len(other.keys)+1)
	for i := range a.partner {
		a.partner[i] = noPartner
	}

	a.hasPartner = make([]bool, len(reference.keys)+1)
	return a
}

// run aligns all requests and returns the differences. It stops after maxEdits differences.
func (a *aligner) run() []edit {
	for a.refPos < len(a.reference.keys) || a.otherPos < len(a.other.keys) {
		switch {
		case a.isMatch(a.refPos, a.otherPos, a.refPos, a.otherPos):
			a.pairBlocks(a.refPos, a.otherPos)
			a.refPos, a.otherPos = a.refPos+1, a.otherPos+1
		case a.isExtraFree(a.otherPos):
			a.otherPos++
		case a.isMissingFree(a.refPos):
			a.refPos++
		case len(a.edits) == maxEdits:
			return a.edits
		default:
			a.addEdit()
		}
	}

	return a.edits
}

// isMatch reports whether request ref of reference and request other of other are the same. Two
// frees match if their blocks are partners. Blocks that were allocated after the base positions
// have no partners yet. Frees of two of these match if both blocks are the n-th since the base
// position.
func (a *aligner) isMatch(ref, other, refBase, otherBase int) bool {
	if ref >= len(a.reference.keys) || other >= len(a.other.keys) {
		return false
	}

	r, o := a.reference.keys[ref], a.other.keys[other]
	if r.action == history.Free && o.action == history.Free && r.block >= 0 &&
		o.block >= 0 && o.block < allocsBefore(a.other, otherBase) {
		return a.partner[o.block] == r.block // the sizes of partners may differ
	}

	if r.action != o.action || r.size != o.size || r.stream != o.stream {
		return false
	}

	if r.action == history.Free {
		return a.isSameBlock(r.block, o.block, refBase, otherBase)
	}

	return r.text == o.text
}

func (a *aligner) isSameBlock(refBlock, otherBlock int32, refBase, otherBase int) bool {
	if refBlock < 0 || otherBlock < 0 {
		return refBlock == otherBlock
	}

	refFirst, otherFirst := allocsBefore(a.reference, refBase), allocsBefore(a.other, otherBase)
	if otherBlock < otherFirst {
		return a.partner[otherBlock] == refBlock
	}

	return refBlock >= refFirst && refBlock-refFirst == otherBlock-otherFirst
}

// allocsBefore returns the number of allocations before request i.
func allocsBefore(v *requestView, i int) int32 {
	if i < len(v.precedingAllocs) {
		return v.precedingAllocs[i]
	}

	if n := len(v.precedingAllocs); n > 0 {
		last := v.precedingAllocs[n-1]
		if v.keys[n-1].action == history.Alloc {
			last++
		}

		return last
	}

	return 0
}

func (a *aligner) areAllocs(ref, other int) bool {
	return ref < len(a.reference.keys) && other < len(a.other.keys) &&
		a.reference.keys[ref].action == history.Alloc && a.other.keys[other].action == history.Alloc
}

// pairBlocks makes the blocks of two allocations partners. It ignores other requests.
func (a *aligner) pairBlocks(ref, other int) {
	if a.areAllocs(ref, other) {
		a.partner[a.other.precedingAllocs[other]] = a.reference.precedingAllocs[ref]
		a.hasPartner[a.reference.precedingAllocs[ref]] = true
	}
}

// unpairBlocks undoes pairBlocks.
func (a *aligner) unpairBlocks(ref, other int) {
	if a.areAllocs(ref, other) {
		a.partner[a.other.precedingAllocs[other]] = noPartner
		a.hasPartner[a.reference.precedingAllocs[ref]] = false
	}
}

// isExtraFree reports whether request i of other frees a block that reference does not have.
func (a *aligner) isExtraFree(i int) bool {
	if i >= len(a.other.keys) {
		return false
	}

	k := a.other.keys[i]
	return k.action == history.Free && k.block >= 0 && a.partner[k.block] == noPartner
}

// isMissingFree reports whether request i of reference frees a block that other does not have.
func (a *aligner) isMissingFree(i int) bool {
	if i >= len(a.reference.keys) {
		return false
	}

	k := a.reference.keys[i]
	return k.action == history.Free && k.block >= 0 && !a.hasPartner[k.block]
}

// hypothesis is a possible explanation for a difference.
type hypothesis struct {
	kind               string
	refNext, otherNext int      // where the comparison continues
	pairs              [][2]int // requests of reference and other that correspond to each other
}

// addEdit records the best explanation for the difference at the current position, and moves past
// it.
func (a *aligner) addEdit() {
	best, bestScore := hypothesis{}, -1
	for _, h := range a.hypotheses() {
		if score := a.score(h); score > bestScore {
			best, bestScore = h, score
		}
	}

	a.edits = append(a.edits, edit{best.kind, a.refPos, a.otherPos})
	for _, p := range best.pairs {
		a.pairBlocks(p[0], p[1])
	}

	a.refPos, a.otherPos = best.refNext, best.otherNext
}

// score returns how many requests after the difference agree if the hypothesis is true.
func (a *aligner) score(h hypothesis) int {
	for _, p := range h.pairs {
		a.pairBlocks(p[0], p[1])
	}

	agree, ref, other := 0, h.refNext, h.otherNext
	for agree < lookahead {
		if ref >= len(a.reference.keys) && other >= len(a.other.keys) {
			agree = lookahead // the hypothesis explains all remaining requests
			break
		}

		switch {
		case a.isMatch(ref, other, h.refNext, h.otherNext):
			agree, ref, other = agree+1, ref+1, other+1
			continue
		case isOlderFree(a.other, other, h.otherNext) && a.isExtraFree(other):
			other++
			continue
		case isOlderFree(a.reference, ref, h.refNext) && a.isMissingFree(ref):
			ref++
			continue
		}

		break
	}

	for _, p := range h.pairs {
		a.unpairBlocks(p[0], p[1])
	}

	return agree
}

// isOlderFree reports whether request i frees a block that was allocated before request base.
func isOlderFree(v *requestView, i, base int) bool {
	return i < len(v.keys) && v.keys[i].action == history.Free &&
		v.keys[i].block < allocsBefore(v, base)
}

// hypotheses lists possible explanations for the difference at the current position. Of equally
// good ones, addEdit chooses the first.
func (a *aligner) hypotheses() []hypothesis {
	ref, other := a.refPos, a.otherPos
	extra := hypothesis{kind: KindExtra, refNext: ref, otherNext: other + 1}
	missing := hypothesis{kind: KindMissing, refNext: ref + 1, otherNext: other}
	if ref >= len(a.reference.keys) {
		return []hypothesis{extra}
	}

	if other >= len(a.other.keys) {
		return []hypothesis{missing}
	}

	all := []hypothesis{{
		kind: a.substitutionKind(ref, other), refNext: ref + 1, otherNext: other + 1,
		pairs: [][2]int{{ref, other}},
	}}
	return append(append(all, a.reorderings()...), extra, missing)
}

// substitutionKind returns the kind of the difference between two requests at the same position.
func (a *aligner) substitutionKind(ref, other int) string {
	r, o := a.reference.keys[ref], a.other.keys[other]
	switch {
	case r.action == history.Call && o.action == history.Call:
		return callDifference(callText(a.reference.rank, a.reference.eventOf(ref)),
			callText(a.other.rank, a.other.eventOf(other)))
	case r.action != o.action:
		return KindCall
	case r.size != o.size && r.action == history.Free && r.block != o.block:
		return KindOrder
	case r.size != o.size:
		return KindSize
	case r.stream != o.stream:
		return KindStream
	}

	return KindOrder
}

func callDifference(a, b string) string {
	if firstWord(a) == firstWord(b) {
		return KindSize
	}

	return KindCall
}

func firstWord(s string) string {
	word, _, _ := strings.Cut(s, " ")
	return word
}

type reordering int

const (
	swapped      reordering = iota // the first and the last request are swapped
	movedForward                   // the last request of reference comes first in other
	movedBack                      // the first request of reference comes last in other
)

// reorderings lists the hypotheses in which only the order of requests differs, for the smallest
// number of requests with a hypothesis that is true.
func (a *aligner) reorderings() []hypothesis {
	var all []hypothesis
	for n := 1; n <= lookahead && len(all) == 0; n++ {
		if a.refPos+n >= len(a.reference.keys) || a.otherPos+n >= len(a.other.keys) {
			break
		}

		for _, kind := range []reordering{swapped, movedForward, movedBack} {
			if h, ok := a.reorder(n, kind); ok {
				all = append(all, h)
			}
		}
	}

	return all
}

// reorder returns the hypothesis that the next n+1 requests are reordered in the given way, and
// whether it is true.
func (a *aligner) reorder(n int, kind reordering) (hypothesis, bool) {
	ref, other := a.refPos, a.otherPos
	var pairs [][2]int
	switch kind {
	case movedForward:
		pairs = append(pairs, [2]int{ref + n, other})
		for k := range n {
			pairs = append(pairs, [2]int{ref + k, other + k + 1})
		}
	case movedBack:
		pairs = append(pairs, [2]int{ref, other + n})
		for k := range n {
			pairs = append(pairs, [2]int{ref + k + 1, other + k})
		}
	case swapped:
		pairs = append(pairs, [2]int{ref, other + n}, [2]int{ref + n, other})
		for k := 1; k < n; k++ {
			pairs = append(pairs, [2]int{ref + k, other + k})
		}
	}

	for _, p := range pairs {
		a.pairBlocks(p[0], p[1])
	}

	ok := true
	for _, p := range pairs {
		ok = ok && a.isMatch(p[0], p[1], ref+n+1, other+n+1)
	}

	for _, p := range pairs {
		a.unpairBlocks(p[0], p[1])
	}

	h := hypothesis{kind: KindOrder, refNext: ref + n + 1, otherNext: other + n + 1, pairs: pairs}
	return h, ok
}
