package diff

import "symmem/cmd/symmem/internal/diff/history"

// requestKey holds the properties of a request that must be the same on all ranks.
type requestKey struct {
	size   int64
	block  int32 // for a free, the block's number; for a call, the number of its text
	stream int32
	action history.Action
}

// requestView lists the compared requests of a sequence. events, keys and earlierBlocks have one
// element for each request.
type requestView struct {
	rank          *history.Rank
	sequence      *history.Sequence
	events        []int32 // indexes in sequence.Events
	keys          []requestKey
	earlierBlocks []int32 // number of allocations before the request
	skippedBlocks int32   // number of allocations in the requests that were skipped
}

// textNumbers holds a number for each text of a call. The numbers are the same on all ranks.
type textNumbers map[string]int32

func (t textNumbers) number(text string) int32 {
	number, ok := t[text]
	if !ok {
		number = int32(len(t))
		t[text] = number
	}
	return number
}

// newView returns a view of a sequence without its first skip requests. sequence can be nil.
func newView(
	rank *history.Rank, sequence *history.Sequence, skip int, numbers textNumbers,
) *requestView {
	v := &requestView{rank: rank, sequence: sequence}
	if sequence == nil {
		v.sequence = &history.Sequence{}
		return v
	}
	allocCount := int32(0)
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
			k.block = numbers.number(rank.Texts[e.Block])
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

// eventOf returns the event of a request, or nil if there is no such request.
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
