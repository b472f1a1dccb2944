package diff

import "symmem/cmd/symmem/internal/diff/history"

// requestKey describes a request (an allocation, a free or a call) in a form that does not depend
// on the rank. If the n-th requests of two ranks have different keys, the ranks differ.
type requestKey struct {
	size int64 // see history.Event.Size
	// block is the number of the block for a free, and the number of the text for a call. It is 0
	// for an allocation. Blocks are numbered from the first compared allocation; older blocks have
	// the number -1.
	block  int32
	stream int32 // number of the stream; 0 is the default stream
	action history.Action
}

// requestView lists the compared requests of a sequence, which holds the events of a pool or group
// on one rank.
type requestView struct {
	rank          *history.Rank
	sequence      *history.Sequence // not nil
	skippedBlocks int32             // number of allocations before the compared requests

	// The following slices have one element for each request.
	events        []int32      // index in sequence.Events
	keys          []requestKey // description of the request
	earlierBlocks []int32      // number of compared allocations before the request
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

// newView returns a view of a sequence without its first skip requests. If the sequence is nil, the
// view is empty.
func newView(
	rank *history.Rank, sequence *history.Sequence, skip int, numbers textNumbers,
) *requestView {
	if sequence == nil { // the rank has no events of the pool or group
		return &requestView{rank: rank, sequence: &history.Sequence{}}
	}

	v := &requestView{rank: rank, sequence: sequence}
	requestCount := 0      // number of requests so far
	allocCount := int32(0) // number of compared allocations so far
	for i := range sequence.Events {
		e := &sequence.Events[i]
		if !e.Action.IsRequest() {
			continue
		}

		requestCount++
		if requestCount <= skip {
			if e.Action == history.Alloc {
				v.skippedBlocks++
			}

			continue
		}

		k := requestKey{size: e.Size, stream: e.Stream, action: e.Action}
		switch e.Action {
		case history.Free:
			k.block = max(e.Block-v.skippedBlocks, -1)
		case history.Call:
			k.block = numbers.findOrAdd(rank.Texts[e.Block])
		default: // an allocation
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
