package diff

import (
	"fmt"
	"slices"

	"symmem/cmd/symmem/internal/diff/history"
	"symmem/internal/alloc"
	"symmem/internal/ranklist"
)

// A replay repeats recorded requests with symmem's allocator. Each allocation gets a place: a
// segment (a range of memory) and an offset in it. If several free blocks of memory suit equally
// well, a rule decides. For example, suppose that two free blocks have the requested size. One is
// in segment 0, at address 0x9000000, and the other in segment 1, at address 0x7000000:
//
//   - By symmem's rule, the block in the oldest segment is taken, here segment 0. Addresses do not
//     matter, so ranks with the same requests get the same places. A replay by this rule shows
//     whether symmem would have given the recorded requests the same places on all ranks.
//   - By PyTorch's rule, the block at the lowest address is taken, here in segment 1. Addresses
//     differ between ranks, so places can differ too. A replay by this rule shows whether it
//     explains the places that each file has recorded.

// replayRequests sets c.result.Replay. It does nothing for collectives, which have no places.
func (c *comparison) replayRequests() {
	hasRequests := len(c.views[0].keys) > 0
	if !hasRequests || c.match.class == history.Calls {
		return
	}

	r := &ReplayResult{}
	r.SymmemRequestIndex, r.SymmemText = c.replaySymmem()
	if c.match.class != history.SymmemPool {
		r.PyTorchText = c.replayPyTorch()
	}

	c.result.Replay = r
}

// replaySymmem replays the requests of all ranks by symmem's rule. It returns the first request
// with different places on two ranks (-1 if there is none), and a description of the result.
func (c *comparison) replaySymmem() (first int, text string) {
	const none = -1
	first = none
	var reference []place // places on the first rank of the comparison
	for i, v := range c.views {
		if i > 0 && slices.Equal(v.keys, c.views[0].keys) {
			continue // the same requests get the same places
		}

		places, err := placeBySymmemRule(v)
		if err != nil {
			text = fmt.Sprintf("the requests of rank %d cannot be replayed: %v", c.numbers[i], err)
			return none, text
		}

		if i == 0 {
			reference = places
			continue
		}

		for request := range min(len(places), len(reference)) {
			isDifferent := places[request] != reference[request]
			if isDifferent && (first == none || request < first) {
				first = request
			}
		}
	}

	text = fmt.Sprintf("by symmem's rule (the oldest block first), all %d ranks agree ",
		len(c.views))
	switch {
	case first != none:
		text += fmt.Sprintf("up to request %d; their requests differ from request %d on", first,
			c.result.EqualRequests)
	case c.result.RequestDifference != nil:
		text += "as far as they have the same requests"
	default:
		text += "to the end"
	}

	return first, text
}

// maxReplayedBytes limits the size of a replayed request. It is far above real sizes.
const maxReplayedBytes = 1 << 40

// placeBySymmemRule returns the places of a rank's requests by symmem's rule. Frees and calls have
// no place.
func placeBySymmemRule(v *requestView) ([]place, error) {
	allocator, err := alloc.New(alloc.Config{}) // by default, this uses symmem's rule
	if err != nil {
		return nil, err
	}

	all := make([]place, 0, len(v.keys))
	var handles []alloc.Handle // of the allocated blocks, by requestKey.block
	for _, k := range v.keys {
		p := noPlace
		// The trace may contain the free of a block but not its allocation. Then, the block has no
		// handle.
		hasHandle := k.block >= 0 && int(k.block) < len(handles)
		isFree := k.action == history.Free
		switch {
		case k.action == history.Alloc:
			block, err := replayRequest(allocator, k)
			if err != nil {
				return nil, err
			}

			handles = append(handles, block.Handle)
			p = place{segment: block.Segment, offset: block.Offset}
		case isFree && hasHandle:
			if _, _, err := allocator.FreeHandle(handles[k.block]); err != nil {
				return nil, err
			}
		}

		all = append(all, p)
	}

	return all, nil
}

// replayRequest allocates a block for a recorded allocation. If no segment has room for the block,
// it first adds a segment.
func replayRequest(allocator *alloc.Core, k requestKey) (alloc.Block, error) {
	if k.size > maxReplayedBytes {
		return alloc.Block{}, fmt.Errorf("a request of %d bytes is too large", k.size)
	}

	size := max(k.size, 1) // the allocator accepts no empty blocks
	for {
		block, growth, err := allocator.Alloc(size, alloc.Stream(k.stream))
		if err != nil {
			return alloc.Block{}, err
		}

		needsSegment := growth.Bytes > 0 // if so, Alloc has allocated nothing
		if !needsSegment {
			return block, nil
		}

		const anyAddress = 0 // symmem's rule does not depend on addresses
		if _, err := allocator.AddSegment(growth, anyAddress); err != nil {
			return alloc.Block{}, err
		}
	}
}

// replayPyTorch replays the events of each rank by PyTorch's rule. It returns a text about whether
// the rule explains the recorded places.
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
		if unexplained := firstUnexplained(v.sequence); unexplained != nil {
			return fmt.Sprintf("PyTorch's rule (best fit, then lowest address) explains the places on "+
				"rank %d up to event %d, but not that event: another rule or setting applied",
				c.numbers[i], unexplained.Number)
		}
	}

	return fmt.Sprintf("PyTorch's rule (best fit, then lowest address) explains the places of all "+
		"blocks on %s", ranklist.Ranks(c.numbers))
}

// firstUnexplained returns the first event of a rank that PyTorch's rule does not explain, or nil.
func firstUnexplained(s *history.Sequence) *history.Event {
	allocator, err := alloc.New(alloc.Config{Policy: alloc.AddressOrder, Sizing: alloc.Stepped})
	if err != nil { // impossible with this Config
		return nil
	}

	r := pytorchReplay{allocator: allocator}
	for i := range s.Events {
		e := &s.Events[i]
		if !r.explains(s, e) {
			return e
		}
	}

	return nil
}

// pytorchReplay replays events by PyTorch's rule.
type pytorchReplay struct {
	allocator *alloc.Core
	handles   []alloc.Handle // of the allocated blocks, by Event.Block
	// newSegment is the segment that PyTorch has mapped for the next allocation, or nil.
	newSegment *history.SegmentInfo
	isTrimmed  bool // whether the free segments have been removed after the last allocation
}

// explains replays an event and reports whether the rule explains it.
func (r *pytorchReplay) explains(s *history.Sequence, e *history.Event) bool {
	switch e.Action {
	case history.MapSegment:
		r.newSegment = &s.Segments[e.Segment]
		return true
	case history.UnmapSegment:
		r.trimOnce()
		return true
	case history.FreeCompleted:
		isOlderBlock := e.Block < 0 || int(e.Block) >= len(r.handles) // allocated before the trace
		if isOlderBlock {
			return true
		}

		_, _, err := r.allocator.FreeHandle(r.handles[e.Block])
		return err == nil
	case history.Alloc:
		r.isTrimmed = false
		return r.explainsAlloc(e)
	default: // a Free, whose block can be reused only after its FreeCompleted
		return true
	}
}

// trimOnce removes all free segments, because PyTorch unmaps them together. Of the events of these
// segments, only the first has this effect.
func (r *pytorchReplay) trimOnce() {
	if r.isTrimmed {
		return
	}

	r.isTrimmed = true
	const keptBytes = 0
	r.allocator.Trim(keptBytes)
}

// explainsAlloc replays an allocation and reports whether the rule explains its place.
func (r *pytorchReplay) explainsAlloc(e *history.Event) bool {
	block, isAllocated := r.allocate(e)
	// PyTorch maps a segment only for an allocation that needs it.
	isSegmentUnused := r.newSegment != nil
	if !isAllocated || isSegmentUnused {
		return false
	}

	r.handles = append(r.handles, block.Handle)
	return block.Segment == e.Segment && block.Offset == e.Offset
}

// allocate allocates a block. If no free block is large enough, it adds newSegment, which must have
// the size that PyTorch would choose. It reports whether it has allocated the block.
func (r *pytorchReplay) allocate(e *history.Event) (block alloc.Block, isAllocated bool) {
	if e.Size > maxReplayedBytes {
		return alloc.Block{}, false
	}

	size := max(e.Size, 1) // the allocator accepts no empty blocks
	stream := alloc.Stream(e.Stream)
	block, growth, err := r.allocator.Alloc(size, stream)
	if err != nil {
		return alloc.Block{}, false
	}

	needsSegment := growth.Bytes > 0
	if !needsSegment {
		return block, true
	}

	hasSegment := r.newSegment != nil && r.newSegment.Bytes == growth.Bytes
	if !hasSegment {
		return alloc.Block{}, false
	}

	if _, err := r.allocator.AddSegment(growth, r.newSegment.Address); err != nil {
		return alloc.Block{}, false
	}

	r.newSegment = nil
	block, growth, err = r.allocator.Alloc(size, stream)
	return block, err == nil && growth.Bytes == 0
}
