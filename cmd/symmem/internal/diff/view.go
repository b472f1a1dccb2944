package diff

import "symmem/cmd/symmem/internal/diff/history"

// A request is an allocation, a free or a call. Its key is the same on all ranks. In this example,
// the trace of rank 1 lacks the first request, so the view of rank 0 skips it:
//
//	event on rank 0         event on rank 1         key on both ranks
//	alloc 512, block 0
//	alloc 1024, block 1     alloc 1024, block 0     alloc 1024
//	free 1024, block 1      free 1024, block 0      free 1024, block 0
//	free 512, block 0       free 512, block -1      free 512, block -1
//
// Events number blocks from the beginning of the trace, and keys from the first compared
// allocation. Blocks allocated earlier have the number -1.

// requestKey identifies a request independently of the rank.
type requestKey struct {
	size   int64          // from history.Event.Size
	block  int32          // of a free
	text   int32          // of a call, from textNumbers
	stream int32          // 0 is the default stream
	action history.Action // Alloc, Free or Call
}

// requestView lists the compared requests of one rank to a pool or group.
type requestView struct {
	rank          *history.Rank
	sequence      *history.Sequence // not nil
	skippedBlocks int32             // number of skipped allocations

	// The following slices have one element for each request.
	eventIndexes  []int32 // in sequence.Events
	keys          []requestKey
	earlierAllocs []int32 // number of allocations in the view before the request
}

// textNumbers numbers the texts of calls. The views of all ranks share one textNumbers, so that
// equal texts have equal numbers.
type textNumbers map[string]int32

func (t textNumbers) findOrAdd(text string) int32 {
	number, isKnown := t[text]
	if !isKnown {
		number = int32(len(t))
		t[text] = number
	}

	return number
}

// newView returns a view of a sequence without its first skipCount requests. The view is empty if
// sequence is nil, because the rank has no events of the pool or group.
func newView(
	rank *history.Rank, sequence *history.Sequence, skipCount int, texts textNumbers,
) *requestView {
	if sequence == nil {
		return &requestView{rank: rank, sequence: &history.Sequence{}}
	}

	v := &requestView{rank: rank, sequence: sequence}
	requestCount := 0
	viewedAllocs := int32(0)
	for i := range sequence.Events {
		e := &sequence.Events[i]
		if !e.Action.IsRequest() {
			continue
		}

		requestCount++
		isAlloc := e.Action == history.Alloc
		isSkipped := requestCount <= skipCount
		if isSkipped {
			if isAlloc {
				v.skippedBlocks++
			}

			continue
		}

		v.eventIndexes = append(v.eventIndexes, int32(i))
		v.keys = append(v.keys, v.newKey(e, texts))
		v.earlierAllocs = append(v.earlierAllocs, viewedAllocs)
		if isAlloc {
			viewedAllocs++
		}
	}

	return v
}

// newKey returns the key of a request. It requires v.skippedBlocks.
func (v *requestView) newKey(e *history.Event, texts textNumbers) requestKey {
	k := requestKey{size: e.Size, stream: e.Stream, action: e.Action}
	switch e.Action {
	case history.Free:
		k.block = v.blockNumber(e)
	case history.Call:
		k.text = texts.findOrAdd(callText(v.rank, e))
	default: // an allocation: its block depends on the preceding requests
	}

	return k
}

// callText returns the text of a call. Its Block is the index of the text.
func callText(rank *history.Rank, call *history.Event) string { return rank.Texts[call.Block] }

// blockNumber returns the number of an event's block for a key.
func (v *requestView) blockNumber(e *history.Event) int32 {
	const earlierBlock = -1
	return max(earlierBlock, e.Block-v.skippedBlocks)
}

// eventOf returns the event of a request, or nil if the view has fewer requests.
func (v *requestView) eventOf(request int) *history.Event {
	if request >= len(v.eventIndexes) {
		return nil
	}

	return &v.sequence.Events[v.eventIndexes[request]]
}

// countEqual returns the number of requests before the first difference.
func (v *requestView) countEqual(other *requestView) int {
	count := min(len(v.keys), len(other.keys))
	for i := range count {
		if v.keys[i] != other.keys[i] {
			return i
		}
	}

	return count
}
