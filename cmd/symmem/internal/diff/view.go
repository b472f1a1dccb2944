package diff

import "symmem/cmd/symmem/internal/diff/history"

// requestKey describes a request. The keys of the same request on different ranks are equal unless
// the ranks differ.
type requestKey struct {
	size   int64
	block  int32 // for a free, the number of the block (see newView); for a call, that of its text
	stream int32
	action history.Action
}

// requestView lists the compared requests of a sequence. Its slices have one element per request.
type requestView struct {
	rank          *history.Rank
	sequence      *history.Sequence
	events        []int32 // index of the request in sequence.Events
	keys          []requestKey
	earlierBlocks []int32 // number of compared allocations before the request
	skippedBlocks int32   // number of allocations before the compared requests
}

// textNumbers numbers the different texts of calls. The views of all ranks share one textNumbers,
// so that equal texts have equal numbers.
type textNumbers map[string]int32

// findOrAdd returns the number of a text, which it assigns if the text is new.
func (t textNumbers) findOrAdd(text string) int32 {
	number, ok := t[text]
	if !ok {
		number = int32(len(t))
		t[text] = number
	}
	return number
}

// newView returns a view of a sequence without its first skip requests. It numbers the blocks from
// the first compared allocation; earlier blocks have the number -1. The sequence can be nil.
func newView(
	rank *history.Rank, sequence *history.Sequence, skip int, numbers textNumbers,
) *requestView {
	v := &requestView{rank: rank, sequence: sequence}
	if sequence == nil {
		v.sequence = &history.Sequence{}
		return v
	}
	allocCount := int32(0) // number of compared allocations so far
	for i := range sequence.Events {
		e := &sequence.Events[i]
		if !e.Action.IsRequest() {
			continue
		}
		if skip > 0 {
			skip--
			if e.Action == history.Alloc {
				v.skippedBlocks++
			}
			continue
		}
		k := requestKey{size: e.Size, stream: e.Stream, action: e.Action}
		if e.Action == history.Free {
			k.block = max(e.Block-v.skippedBlocks, -1)
		}
		if e.Action == history.Call {
			k.block = numbers.findOrAdd(rank.Texts[e.Block])
		}
		v.events = append(v.events, int32(i))
		v.keys = append(v.keys, k)
		v.earlierBlocks = append(v.earlierBlocks, allocCount)
		if e.Action == history.Alloc {
			allocCount++
		}
	}
	return v
}

// eventOf returns the event of the request at an index, or nil if the view has fewer requests.
func (v *requestView) eventOf(request int) *history.Event {
	if request >= len(v.events) {
		return nil
	}
	return &v.sequence.Events[v.events[request]]
}

// countEqual returns the number of requests before the first difference between two views.
func (v *requestView) countEqual(other *requestView) int {
	count := min(len(v.keys), len(other.keys))
	for i := range count {
		if v.keys[i] != other.keys[i] {
			return i
		}
	}
	return count
}
