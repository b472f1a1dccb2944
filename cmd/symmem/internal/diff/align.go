package diff

import "symmem/cmd/symmem/internal/diff/history"

// Kinds of differences.
const (
	KindSize    = "other size"
	KindMissing = "missing"
	KindExtra   = "extra"
	KindOrder   = "other order"
	KindPlace   = "other place"
	KindStream  = "other stream"
	KindPool    = "other pool"
	KindCall    = "other call"
)

const (
	// lookahead is the number of following requests with which an explanation of a difference is
	// tested.
	lookahead = 64
	// maxEdits is the number of differences after which an aligner stops.
	maxEdits = 1000
)

type edit struct {
	kind             string
	reference, other int // indexes of the requests
}

// aligner compares the requests of one rank (other) with those of another (reference). It finds
// a list of edits that turns the requests of reference into those of other.
type aligner struct {
	reference, other *view
	pair             []int32 // for each block of other, its counterpart in reference, or unpaired
	hasPair          []bool  // for each block of reference, whether it has a counterpart
	i, j             int
	edits            []edit
}

const unpaired = -2

func newAligner(reference, other *view) *aligner {
	a := &aligner{reference: reference, other: other}
	a.pair = make([]int32, len(other.keys)+1)
	for i := range a.pair {
		a.pair[i] = unpaired
	}
	a.hasPair = make([]bool, len(reference.keys)+1)
	return a
}

// run aligns all requests and returns the differences. It stops after maxEdits differences.
func (a *aligner) run() []edit {
	for a.i < len(a.reference.keys) || a.j < len(a.other.keys) {
		switch {
		case a.matches(a.i, a.j, a.i, a.j):
			a.pairBlocks(a.i, a.j)
			a.i, a.j = a.i+1, a.j+1
		case a.freesExtra(a.j):
			a.j++
		case a.freesMissing(a.i):
			a.i++
		case len(a.edits) == maxEdits:
			return a.edits
		default:
			a.step()
		}
	}
	return a.edits
}

// matches reports whether request ri of reference and request dj of other are the same. If they
// free blocks that were allocated before requests i and j, the blocks must be paired. If the blocks
// were allocated later, the block of ri must come as many allocations after i as the block of dj
// comes after j.
func (a *aligner) matches(ri, dj, i, j int) bool {
	if ri >= len(a.reference.keys) || dj >= len(a.other.keys) {
		return false
	}
	r, d := a.reference.keys[ri], a.other.keys[dj]
	if r.action == history.Free && d.action == history.Free && r.block >= 0 &&
		d.block >= 0 && d.block < allocsBefore(a.other, j) {
		return a.pair[d.block] == r.block // paired blocks, and therefore their frees, may differ in size
	}
	if r.action != d.action || r.size != d.size || r.stream != d.stream {
		return false
	}
	if r.action == history.Free {
		return a.sameBlock(r.block, d.block, i, j)
	}
	return r.block == d.block
}

func (a *aligner) sameBlock(r, d int32, i, j int) bool {
	if r < 0 || d < 0 {
		return r == d
	}
	baseR, baseD := allocsBefore(a.reference, i), allocsBefore(a.other, j)
	if d < baseD {
		return a.pair[d] == r
	}
	return r >= baseR && r-baseR == d-baseD
}

// allocsBefore returns the number of allocations before a request.
func allocsBefore(v *view, i int) int32 {
	if i < len(v.blocks) {
		return v.blocks[i]
	}
	if n := len(v.blocks); n > 0 {
		last := v.blocks[n-1]
		if v.keys[n-1].action == history.Alloc {
			last++
		}
		return last
	}
	return 0
}

func (a *aligner) pairBlocks(ri, dj int) {
	if ri < len(a.reference.keys) && dj < len(a.other.keys) &&
		a.reference.keys[ri].action == history.Alloc && a.other.keys[dj].action == history.Alloc {
		a.pair[a.other.blocks[dj]] = a.reference.blocks[ri]
		a.hasPair[a.reference.blocks[ri]] = true
	}
}

// unpairBlocks undoes a call to pairBlocks.
func (a *aligner) unpairBlocks(ri, dj int) {
	if ri < len(a.reference.keys) && dj < len(a.other.keys) &&
		a.reference.keys[ri].action == history.Alloc && a.other.keys[dj].action == history.Alloc {
		a.pair[a.other.blocks[dj]] = unpaired
		a.hasPair[a.reference.blocks[ri]] = false
	}
}

// freesExtra reports whether request j of other frees a block that reference does not have.
func (a *aligner) freesExtra(j int) bool {
	if j >= len(a.other.keys) {
		return false
	}
	k := a.other.keys[j]
	return k.action == history.Free && k.block >= 0 && a.pair[k.block] == unpaired
}

// freesMissing reports whether request i of reference frees a block that other does not have.
func (a *aligner) freesMissing(i int) bool {
	if i >= len(a.reference.keys) {
		return false
	}
	k := a.reference.keys[i]
	return k.action == history.Free && k.block >= 0 && !a.hasPair[k.block]
}

// hypothesis is a possible explanation of a difference. If it is true, pairs lists which
// requests at the difference correspond to each other, and the comparison continues at request i
// of the reference and request j of the other rank.
type hypothesis struct {
	kind  string
	i, j  int
	pairs [][2]int
}

// step records the best explanation of the difference at the current position and moves past it.
func (a *aligner) step() {
	best, bestScore := hypothesis{}, -1
	for _, h := range a.hypotheses() {
		if score := a.score(h); score > bestScore {
			best, bestScore = h, score
		}
	}
	a.edits = append(a.edits, edit{best.kind, a.i, a.j})
	for _, p := range best.pairs {
		a.pairBlocks(p[0], p[1])
	}
	a.i, a.j = best.i, best.j
}

// score returns how many of the requests after the difference agree if the hypothesis is true.
func (a *aligner) score(h hypothesis) int {
	for _, p := range h.pairs {
		a.pairBlocks(p[0], p[1])
	}
	n, ri, dj := 0, h.i, h.j
	for n < lookahead {
		if ri >= len(a.reference.keys) && dj >= len(a.other.keys) {
			n = lookahead // the hypothesis explains all remaining requests
			break
		}
		switch {
		case a.matches(ri, dj, h.i, h.j):
			n, ri, dj = n+1, ri+1, dj+1
			continue
		case a.freesAfter(a.other, dj, h.j) && a.freesExtra(dj):
			dj++
			continue
		case a.freesAfter(a.reference, ri, h.i) && a.freesMissing(ri):
			ri++
			continue
		}
		break
	}
	for _, p := range h.pairs {
		a.unpairBlocks(p[0], p[1])
	}
	return n
}

// freesAfter reports whether request i of a view frees a block that was allocated before request
// at.
func (a *aligner) freesAfter(v *view, i, at int) bool {
	return i < len(v.keys) && v.keys[i].action == history.Free && v.keys[i].block < allocsBefore(v, at)
}

// hypotheses lists possible explanations of the difference at the current position, the
// preferred ones first.
func (a *aligner) hypotheses() []hypothesis {
	i, j := a.i, a.j
	if i >= len(a.reference.keys) {
		return []hypothesis{{kind: KindExtra, i: i, j: j + 1}}
	}
	if j >= len(a.other.keys) {
		return []hypothesis{{kind: KindMissing, i: i + 1, j: j}}
	}
	all := []hypothesis{{kind: a.substitution(i, j), i: i + 1, j: j + 1, pairs: [][2]int{{i, j}}}}
	all = append(all, a.orders()...)
	return append(all,
		hypothesis{kind: KindExtra, i: i, j: j + 1}, hypothesis{kind: KindMissing, i: i + 1, j: j})
}

// substitution names the difference between two requests at the same position.
func (a *aligner) substitution(i, j int) string {
	r, d := a.reference.keys[i], a.other.keys[j]
	switch {
	case r.action == history.Call && d.action == history.Call:
		return callDifference(a.reference.rank.Texts[a.reference.event(i).Block],
			a.other.rank.Texts[a.other.event(j).Block])
	case r.action != d.action:
		return KindCall
	case r.size != d.size && r.action == history.Free && r.block != d.block:
		return KindOrder
	case r.size != d.size:
		return KindSize
	case r.stream != d.stream:
		return KindStream
	}
	return KindOrder
}

func callDifference(r, d string) string {
	if firstWord(r) == firstWord(d) {
		return KindSize
	}
	return KindCall
}

func firstWord(s string) string {
	for i := range len(s) {
		if s[i] == ' ' {
			return s[:i]
		}
	}
	return s
}

// orders lists the explanations in which only the order of requests differs: two requests are
// swapped, or one of them comes earlier or later.
func (a *aligner) orders() []hypothesis {
	var all []hypothesis
	for n := 1; n <= lookahead; n++ {
		ri, dj := a.i+n, a.j+n
		if ri >= len(a.reference.keys) || dj >= len(a.other.keys) {
			break
		}
		for _, shape := range [][2]int{{0, 0}, {0, 1}, {1, 0}} {
			if h, ok := a.order(n, shape); ok {
				all = append(all, h)
			}
		}
		if len(all) > 0 {
			break
		}
	}
	return all
}

// order returns a hypothesis about the order of the next n+1 requests, and whether it is true.
// shape selects the hypothesis. {0,0} means that the first and the last request are swapped,
// {0,1} that the last request of reference comes first in other, and {1,0} that the first
// request of reference comes last in other.
func (a *aligner) order(n int, shape [2]int) (hypothesis, bool) {
	i, j := a.i, a.j
	var pairs [][2]int
	switch {
	case shape[1] == 1:
		pairs = append(pairs, [2]int{i + n, j})
		for k := range n {
			pairs = append(pairs, [2]int{i + k, j + k + 1})
		}
	case shape[0] == 1:
		pairs = append(pairs, [2]int{i, j + n})
		for k := range n {
			pairs = append(pairs, [2]int{i + k + 1, j + k})
		}
	default:
		pairs = append(pairs, [2]int{i, j + n}, [2]int{i + n, j})
		for k := 1; k < n; k++ {
			pairs = append(pairs, [2]int{i + k, j + k})
		}
	}
	for _, p := range pairs {
		a.pairBlocks(p[0], p[1])
	}
	ok := true
	for _, p := range pairs {
		ok = ok && a.matches(p[0], p[1], i+n+1, j+n+1)
	}
	for _, p := range pairs {
		a.unpairBlocks(p[0], p[1])
	}
	return hypothesis{kind: KindOrder, i: i + n + 1, j: j + n + 1, pairs: pairs}, ok
}
