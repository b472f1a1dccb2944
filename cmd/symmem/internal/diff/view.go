package diff

import "symmem/cmd/symmem/internal/diff/history"

// requestKey identifies a request (an allocation, a free or a call). If the ranks make the same
// requests, these have the same keys. In this example, the trace of rank 1 lacks the first request,
// so rank 0 skips it:
//
//	event on rank 0         event on rank 1         key on both ranks
//	alloc 512, block 0
//	alloc 1024, block 1     alloc 1024, block 0     alloc 1024
//	free 1024, block 1      free 1024, block 0      free 1024, block 0
//	free 512, block 0       free 512, block -1      free 512, block -1
//
// In a key, block 0 is that of the first compared allocation. Blocks allocated earlier have the
// number -1.
type requestKey struct {
	size   int64          // from history.Event.Size
	block  int32          // only set for a free
	text   int32          // only set for a call, from textNumbers
	stream int32          // 0 is the default stream
	action history.Action // Alloc, Free or Call
}

// requestView lists the compared requests of one rank to a pool or group.
type requestView struct {
	rank          *history.Rank
	sequence      *history.Sequence // not nil
	skippedAllocs int32             // number of allocations before the view

	// The following slices have one element for each request.
	eventIndexes    []int32 // in sequence.Events
	keys            []requestKey
	precedingAllocs []int32 // number of allocations in the view before the request
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

// newView returns a view of a sequence without its first skipCount requests. If sequence is nil,
// the view is empty.
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
		if isSkipped && isAlloc {
			v.skippedAllocs++
		}

		if isSkipped {
			continue
		}

		v.eventIndexes = append(v.eventIndexes, int32(i))
		v.keys = append(v.keys, v.newKey(e, texts))
		v.precedingAllocs = append(v.precedingAllocs, viewedAllocs)
		if isAlloc {
			viewedAllocs++
		}
	}

	return v
}

// newKey returns the key of a request. It requires v.skippedAllocs.
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

// callText returns the text of a call.
func callText(rank *history.Rank, call *history.Event) string { return rank.Texts[call.Block] }

// blockNumber returns the number of an event's block in keys.
func (v *requestView) blockNumber(e *history.Event) int32 {
	const allocatedBeforeView = -1
	return max(allocatedBeforeView, e.Block-v.skippedAllocs)
}

// eventOf returns the event of a request, or nil if the view has fewer requests.
func (v *requestView) eventOf(request int) *history.Event {
	if request >= len(v.eventIndexes) {
		return nil
	}

	return &v.sequence.Events[v.eventIndexes[request]]
}

// equalPrefixLength returns the number of requests before the first difference.
func (v *requestView) equalPrefixLength(other *requestView) int {
	count := min(len(v.keys), len(other.keys))
	for i := range count {
		if v.keys[i] != other.keys[i] {
			return i
		}
	}

	return count
}
