package diff

import (
	"fmt"
	"slices"

	"symmem/cmd/symmem/internal/diff/history"
	"symmem/internal/alloc"
	"symmem/internal/ranklist"
)

// replayRequests simulates where symmem and PyTorch would place the requests of each rank, and
// sets c.result.Replay.
func (c *comparison) replayRequests() {
	if c.match.class == history.Calls || len(c.views[0].keys) == 0 {
		return
	}
	r := &ReplayResult{SymmemFirst: -1}
	r.SymmemText = c.replaySymmem(r)
	if c.match.class != history.SymmemPool {
		r.PyTorchText = c.replayPyTorch()
	}
	c.result.Replay = r
}

// replaySymmem places the requests of all ranks as symmem does: it takes the oldest of several
// equally suitable blocks. It sets r.SymmemFirst and returns a description of the result.
func (c *comparison) replaySymmem(r *ReplayResult) string {
	var reference []placement // placements on the first member
	first := -1               // first request with different placements, or -1
	for i, v := range c.views {
		if i > 0 && slices.Equal(v.keys, c.views[0].keys) {
			continue // the same requests get the same placements
		}
		placements, err := placeOldestFirst(v)
		if err != nil {
			return fmt.Sprintf("the requests of rank %d cannot be replayed: %v", c.numbers[i], err)
		}
		if i == 0 {
			reference = placements
			continue
		}
		for request := range min(len(placements), len(reference)) {
			isDifferent := placements[request] != reference[request]
			if isDifferent && (first < 0 || request < first) {
				first = request
			}
		}
	}
	r.SymmemFirst = first
	all := fmt.Sprintf("all %d ranks", len(c.views))
	switch {
	case first < 0 && c.result.RequestDifference == nil:
		return "by symmem's rule (the oldest block first), " + all + " agree to the end"
	case first < 0:
		return "by symmem's rule (the oldest block first), " + all +
			" agree as far as they have the same requests"
	}
	return fmt.Sprintf("by symmem's rule (the oldest block first), %s agree up to request %d; their "+
		"requests differ from request %d on", all, first, c.result.EqualRequests)
}

const maxReplayedBytes = 1 << 40 // limit of the size of a replayed request

// placeOldestFirst returns the placements of a view's requests by symmem's rule. It ignores blocks
// that were allocated before the trace began.
func placeOldestFirst(v *requestView) ([]placement, error) {
	allocator, err := alloc.New(alloc.Config{})
	if err != nil {
		return nil, err
	}
	all := make([]placement, 0, len(v.keys))
	var handles []alloc.Handle // by requestKey.block
	for _, k := range v.keys {
		p := placement{segment: -1}
		switch {
		case k.action == history.Alloc && k.size > maxReplayedBytes:
			return nil, fmt.Errorf("a request of %d bytes is too large", k.size)
		case k.action == history.Alloc:
			block, err := allocate(allocator, max(k.size, 1), alloc.Stream(k.stream))
			if err != nil {
				return nil, err
			}
			p = placement{block.Segment, block.Offset}
			handles = append(handles, block.Handle)
		case k.block >= 0 && int(k.block) < len(handles):
			if _, _, err := allocator.FreeHandle(handles[k.block]); err != nil {
				return nil, err
			}
		}
		all = append(all, p)
	}
	return all, nil
}

// allocate allocates a block, for which it adds a segment if necessary.
func allocate(allocator *alloc.Core, size int64, stream alloc.Stream) (alloc.Block, error) {
	for {
		block, growth, err := allocator.Alloc(size, stream)
		if err != nil || growth.Bytes == 0 {
			return block, err
		}
		if _, err := allocator.AddSegment(growth, 0); err != nil {
			return alloc.Block{}, err
		}
	}
}

// replayPyTorch states whether PyTorch's rule, applied to the addresses of segments in each file,
// explains the places in the files.
func (c *comparison) replayPyTorch() string {
	for i, v := range c.views {
		s := v.sequence
		switch {
		case s.NoPlacesReason != "":
			return "PyTorch's rule was not replayed: " + s.NoPlacesReason
		case s.UnsupportedSetting != "":
			return fmt.Sprintf("PyTorch's rule was not replayed: rank %d uses %s",
				c.numbers[i], s.UnsupportedSetting)
		case s.IsPartial:
			return "PyTorch's rule was not replayed: the pool is older than the trace"
		}
	}
	for i, v := range c.views {
		if e := replayAddresses(v.sequence); e != nil {
			return fmt.Sprintf("PyTorch's rule (best fit, then lowest address) explains the places on "+
				"rank %d up to event %d, but not that event: another rule or setting applied",
				c.numbers[i], e.Number)
		}
	}
	return fmt.Sprintf("PyTorch's rule (best fit, then lowest address) explains the places of all "+
		"blocks on %s", ranklist.Ranks(c.numbers))
}

// addressReplay replays a sequence as PyTorch does: among free blocks of the same size, it takes
// the block at the lowest address.
type addressReplay struct {
	allocator     *alloc.Core
	mappedSegment *history.SegmentInfo // the last mapped segment, or nil if a block uses it
	handles       []alloc.Handle       // by Event.Block
	isTrimmed     bool                 // whether the pool was trimmed after the last allocation
}

// replayAddresses returns the first event of a sequence that PyTorch's rule does not explain, or
// nil.
func replayAddresses(s *history.Sequence) *history.Event {
	allocator, err := alloc.New(alloc.Config{Policy: alloc.AddressOrder, Sizing: alloc.Stepped})
	if err != nil { // impossible with this Config
		return nil
	}
	r := addressReplay{allocator: allocator}
	for i := range s.Events {
		e := &s.Events[i]
		if !r.replayEvent(s, e) {
			return e
		}
	}
	return nil
}

// replayEvent replays an event and reports whether the rule explains it.
func (r *addressReplay) replayEvent(s *history.Sequence, e *history.Event) bool {
	switch e.Action {
	case history.Free, history.Call: // a block becomes free when its free completes
	case history.MapSegment:
		r.mappedSegment = &s.Segments[e.Segment]
		return true
	case history.UnmapSegment:
		if !r.isTrimmed {
			r.allocator.Trim(0) // PyTorch unmaps all free segments together
		}
		r.isTrimmed = true
		return true
	case history.FreeCompleted:
		if e.Block >= 0 && int(e.Block) < len(r.handles) {
			_, _, err := r.allocator.FreeHandle(r.handles[e.Block])
			return err == nil
		}
		return true
	case history.Alloc:
		r.isTrimmed = false
		return r.replayAlloc(e)
	}
	return true
}

// replayAlloc replays an allocation and reports whether the rule explains the place. If no free
// block is large enough, PyTorch must have mapped a segment of the right size just before.
func (r *addressReplay) replayAlloc(e *history.Event) bool {
	if e.Size > maxReplayedBytes {
		return false
	}
	size, stream := max(e.Size, 1), alloc.Stream(e.Stream)
	block, growth, err := r.allocator.Alloc(size, stream)
	if err == nil && growth.Bytes > 0 {
		if r.mappedSegment == nil || r.mappedSegment.Bytes != growth.Bytes {
			return false
		}
		_, err = r.allocator.AddSegment(growth, r.mappedSegment.Address)
		if err == nil {
			r.mappedSegment = nil
			block, growth, err = r.allocator.Alloc(size, stream)
		}
	}
	if err != nil || growth.Bytes > 0 || r.mappedSegment != nil {
		return false
	}
	r.handles = append(r.handles, block.Handle)
	return block.Segment == e.Segment && block.Offset == e.Offset
}
