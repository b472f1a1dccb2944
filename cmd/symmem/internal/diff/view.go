package diff

import "symmem/cmd/symmem/internal/diff/history"

// A request is an allocation, a free or a call. To compare the requests of two ranks, each request
// gets a key. Example: the trace of rank 1 lacks the first request, so rank 0 skips it.
//
//	event on rank 0      event on rank 1      keys
//	block 0: alloc 512   (not in the trace)   (skipped)
//	block 1: alloc 1024  block 0: alloc 1024  alloc 1024
//	block 1: free 1024   block 0: free 1024   free 1024, block 0
//	block 0: free 512    block -1: free 512   free 512, block -1
//
// Events number the blocks from the beginning of each trace. Keys number them from the first
// compared allocation, so both ranks have the same keys. All older blocks have the number -1.

// requestKey describes a request in a form that does not depend on the rank. If the n-th requests
// of two ranks have different keys, the ranks differ.
type requestKey struct {
	size   int64          // from history.Event.Size
	block  int32          // for a free: number of the block; for a call: number of its text; else 0
	stream int32          // number of the stream; 0 is the default stream
	action history.Action // allocation, free or call
}

// requestView lists the requests of one rank to a pool or group, without the skipped ones.
type requestView struct {
	rank          *history.Rank
	sequence      *history.Sequence // the rank's events in the pool or group; not nil
	skippedBlocks int32             // number of skipped allocations

	// The following slices have one element for each request.
	events        []int32 // index in sequence.Events
	keys          []requestKey
	earlierBlocks []int32 // number of allocations in the view before this request
}

// textNumbers numbers the texts that describe calls. The views of all ranks share one textNumbers,
// so that equal texts have equal numbers.
type textNumbers map[string]int32

// findOrAdd returns the number of a text. A new text gets the next number.
func (t textNumbers) findOrAdd(text string) int32 {
	number, isKnown := t[text]
	if !isKnown {
		number = int32(len(t))
		t[text] = number
	}

	return number
}

// newView returns a view of a sequence, which skips the first requests. It returns an empty view if
// the sequence is nil, because the rank has no events in the pool or group.
func newView(
	rank *history.Rank, sequence *history.Sequence, skip int, numbers textNumbers,
) *requestView {
	if sequence == nil {
		return &requestView{rank: rank, sequence: &history.Sequence{}}
	}

	v := &requestView{rank: rank, sequence: sequence}
	requestCount := 0      // number of requests so far
	allocCount := int32(0) // number of allocations in the view so far
	for i := range sequence.Events {
		e := &sequence.Events[i]
		if !e.Action.IsRequest() {
			continue
		}

		requestCount++
		isSkipped := requestCount <= skip
		isAlloc := e.Action == history.Alloc
		if isSkipped && isAlloc {
			v.skippedBlocks++
		}

		if isSkipped {
			continue
		}

		v.events = append(v.events, int32(i))
		v.keys = append(v.keys, v.newKey(e, numbers))
		v.earlierBlocks = append(v.earlierBlocks, allocCount)
		if isAlloc {
			allocCount++
		}
	}

	return v
}

// newKey returns the key of a request. v.skippedBlocks must have been counted.
func (v *requestView) newKey(e *history.Event, numbers textNumbers) requestKey {
	k := requestKey{size: e.Size, stream: e.Stream, action: e.Action}
	switch e.Action {
	case history.Free:
		k.block = v.blockNumber(e)
	case history.Call:
		textIndex := e.Block // calls have no block, so this field has another meaning
		k.block = numbers.findOrAdd(v.rank.Texts[textIndex])
	default: // an allocation, whose block follows from the requests before it
	}

	return k
}

// eventOf returns the event of a request, or nil if the view has fewer requests.
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
