package diff

import (
	"fmt"
	"slices"

	"symmem/cmd/symmem/internal/diff/history"
	"symmem/internal/alloc"
	"symmem/internal/ranklist"
)

// replayRequests simulates where symmem and PyTorch would place the requests of each rank, and
// sets c.result.Replay. It does nothing for collectives, which have no places.
func (c *comparison) replayRequests() {
	if c.match.class == history.Calls {
		return
	}

	if len(c.views[0].keys) == 0 { // no requests to replay
		return
	}

	r := &ReplayResult{}
	r.SymmemFirst, r.SymmemText = c.replaySymmem()
	if c.match.class != history.SymmemPool {
		r.PyTorchText = c.replayPyTorch()
	}

	c.result.Replay = r
}

// replaySymmem places the requests of all ranks as symmem does: it takes the oldest of several
// equally suitable blocks. It returns the first request with different places on two ranks (-1 if
// there is none), and a description of the result.
func (c *comparison) replaySymmem() (first int, text string) {
	first = -1
	var reference []place // places on the first member
	for i, v := range c.views {
		if i > 0 && slices.Equal(v.keys, c.views[0].keys) {
			continue // the same requests get the same places
		}

		places, err := placeOldestFirst(v)
		if err != nil {
			text = fmt.Sprintf("the requests of rank %d cannot be replayed: %v", c.numbers[i], err)
			return -1, text
		}

		if i == 0 {
			reference = places
			continue
		}

		for request := range min(len(places), len(reference)) {
			isDifferent := places[request] != reference[request]
			if isDifferent && (first < 0 || request < first) {
				first = request
			}
		}
	}

	text = fmt.Sprintf("by symmem's rule (the oldest block first), all %d ranks agree ",
		len(c.views))
	switch {
	case first >= 0:
		text += fmt.Sprintf("up to request %d; their requests differ from request %d on", first,
			c.result.EqualRequests)
	case c.result.RequestDifference != nil:
		text += "as far as they have the same requests"
	default:
		text += "to the end"
	}

	return first, text
}

const maxReplayedBytes = 1 << 40 // limit of the size of a replayed request, far above real sizes

// placeOldestFirst returns the places of a view's requests by symmem's rule. It ignores blocks
// that were allocated before the trace began.
func placeOldestFirst(v *requestView) ([]place, error) {
	allocator, err := alloc.New(alloc.Config{})
	if err != nil {
		return nil, err
	}

	all := make([]place, 0, len(v.keys))
	var handles []alloc.Handle // of the blocks, by requestKey.block
	for _, k := range v.keys {
		p := noPlace // remains the place of a free
		if k.action == history.Alloc {
			if k.size > maxReplayedBytes {
				return nil, fmt.Errorf("a request of %d bytes is too large", k.size)
			}

			block, err := allocate(allocator, max(k.size, 1), alloc.Stream(k.stream))
			if err != nil {
				return nil, err
			}

			p = place{segment: block.Segment, offset: block.Offset}
			handles = append(handles, block.Handle)
		} else if k.block >= 0 && int(k.block) < len(handles) { // otherwise, the block is ignored
			if _, _, err := allocator.FreeHandle(handles[k.block]); err != nil {
				return nil, err
			}
		}

		all = append(all, p)
	}

	return all, nil
}

// allocate allocates a block. If no segment has room for the block, it first adds a segment.
func allocate(allocator *alloc.Core, size int64, stream alloc.Stream) (alloc.Block, error) {
	for {
		block, growth, err := allocator.Alloc(size, stream)
		if err != nil {
			return alloc.Block{}, err
		}

		if growth.Bytes == 0 {
			return block, nil
		}

		// Alloc has allocated nothing, because it needs a segment of growth.Bytes.
		const anyAddress = 0 // symmem's rule does not depend on addresses
		if _, err := allocator.AddSegment(growth, anyAddress); err != nil {
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
		if unexplained := replayAddresses(v.sequence); unexplained != nil {
			return fmt.Sprintf("PyTorch's rule (best fit, then lowest address) explains the places on "+
				"rank %d up to event %d, but not that event: another rule or setting applied",
				c.numbers[i], unexplained.Number)
		}
	}

	return fmt.Sprintf("PyTorch's rule (best fit, then lowest address) explains the places of all "+
		"blocks on %s", ranklist.Ranks(c.numbers))
}

// addressReplay replays a sequence as PyTorch does: among free blocks of the same size, it takes
// the block at the lowest address.
type addressReplay struct {
	allocator *alloc.Core
	// mappedSegment is the last mapped segment. It is nil before the first, and after an allocation
	// has added it to the allocator.
	mappedSegment *history.SegmentInfo
	handles       []alloc.Handle // of the blocks, by Event.Block
	isTrimmed     bool           // whether the pool was trimmed after the last allocation
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
	case history.MapSegment:
		r.mappedSegment = &s.Segments[e.Segment] // the next allocation must use it
		return true
	case history.UnmapSegment:
		if !r.isTrimmed {
			r.isTrimmed = true
			const minMappedBytes = 0 // PyTorch unmaps all free segments together
			r.allocator.Trim(minMappedBytes)
		}

		return true
	case history.FreeCompleted:
		if e.Block < 0 || int(e.Block) >= len(r.handles) { // of a block older than the trace
			return true
		}

		_, _, err := r.allocator.FreeHandle(r.handles[e.Block])
		return err == nil
	case history.Alloc:
		r.isTrimmed = false
		return r.replayAlloc(e)
	default: // a Free, whose block becomes free with FreeCompleted
		return true
	}
}

// replayAlloc replays an allocation and reports whether the rule explains the place. If no free
// block is large enough, PyTorch must have mapped a segment of the right size just before.
func (r *addressReplay) replayAlloc(e *history.Event) bool {
	if e.Size > maxReplayedBytes {
		return false
	}

	size := max(e.Size, 1)
	stream := alloc.Stream(e.Stream)
	block, growth, err := r.allocator.Alloc(size, stream)
	if err != nil {
		return false
	}

	if growth.Bytes > 0 { // no free block is large enough
		if r.mappedSegment == nil || r.mappedSegment.Bytes != growth.Bytes {
			return false
		}

		if _, err := r.allocator.AddSegment(growth, r.mappedSegment.Address); err != nil {
			return false
		}

		r.mappedSegment = nil
		block, growth, err = r.allocator.Alloc(size, stream)
		if err != nil || growth.Bytes > 0 {
			return false
		}
	}

	if r.mappedSegment != nil { // PyTorch needed a segment, but the rule does not
		return false
	}

	r.handles = append(r.handles, block.Handle)
	return block.Segment == e.Segment && block.Offset == e.Offset
}
