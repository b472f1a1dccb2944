package diff

import "symmem/cmd/symmem/internal/diff/history"

// key holds the properties of a request that must be the same on all ranks.
type key struct {
	size   int64
	block  int32 // for a free, the block's number; for a call, the number of its text
	stream int32
	action history.Action
}

// view lists the requests of a sequence that are compared. events, keys and blocks have one element
// for each request.
type view struct {
	rank          *history.Rank
	sequence      *history.Sequence
	events        []int32 // indexes in sequence.Events
	keys          []key
	blocks        []int32 // number of allocations before the request
	skippedBlocks int32   // number of allocations in the requests that were skipped
}

// texts numbers the texts of calls, so that the same text has the same number on all ranks.
type texts map[string]int32

func (t texts) number(text string) int32 {
	n, ok := t[text]
	if !ok {
		n = int32(len(t))
		t[text] = n
	}
	return n
}

// newView returns a view of a sequence without its first skip requests. sequence may be nil.
func newView(rank *history.Rank, sequence *history.Sequence, skip int, t texts) *view {
	v := &view{rank: rank, sequence: sequence}
	if sequence == nil {
		v.sequence = &history.Sequence{}
		return v
	}
	allocs := int32(0)
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
		k := key{size: e.Size, stream: e.Stream, action: e.Action}
		if e.Action == history.Free {
			k.block = max(e.Block-v.skippedBlocks, -1)
		}
		if e.Action == history.Call {
			k.block = t.number(rank.Texts[e.Block])
		}
		v.events = append(v.events, int32(i))
		v.keys = append(v.keys, k)
		v.blocks = append(v.blocks, allocs)
		if e.Action == history.Alloc {
			allocs++
		}
	}
	return v
}

// event returns the event of request i, or nil if there is no such request.
func (v *view) event(i int) *history.Event {
	if i >= len(v.events) {
		return nil
	}
	return &v.sequence.Events[v.events[i]]
}

// commonPrefix returns the number of requests before the first difference between two views.
func (v *view) commonPrefix(other *view) int {
	n := min(len(v.keys), len(other.keys))
	for i := range n {
		if v.keys[i] != other.keys[i] {
			return i
		}
	}
	return n
}
