package symmem

import (
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/event"
	"symmem/internal/alloc"
	"symmem/internal/ledger"
)

// Suppose that a program allocates 3 MiB on stream 2, and that stream 2 has no free block of this
// size. The core of the pool places blocks, but it cannot map memory. So it returns a growth: the
// size of a segment that is needed, for example 64 MiB. The heap then does the following:
//
//   - It maps a segment of 64 MiB, adds it to the core, and asks the core again.
//   - If the device has less memory, the heap tries smaller segments in which the block fits.
//   - If that fails, too, or if the pool has reached its capacity, the heap takes free memory of
//     other streams. Their work may still use it, so stream 2 waits for this work on the device.

// heap provides memory for allocations that the core alone cannot serve. Callers must hold Pool.mu.
type heap struct {
	core      *alloc.Core
	ledger    *ledger.Ledger // the pool's history, which ranks compare
	segments  *segmentTable
	uses      *useTracker
	streams   *streamList
	registrar *registrar
}

// alloc completes an allocation for which core.Alloc has returned block, growth and err. Even if
// the core has placed the block, s may have to wait for earlier uses of its memory. site identifies
// the calling code, for the history.
func (h *heap) alloc(
	s *Stream, bytes int64, block alloc.Block, growth alloc.Growth, err error, site uint32,
) (alloc.Block, error) {
	for {
		if waitErr := h.uses.awaitUses(s); waitErr != nil {
			return alloc.Block{}, waitErr
		}

		isPlaced := err == nil && growth.Bytes == 0
		if isPlaced {
			return block, nil
		}

		if provideErr := h.provide(s, bytes, growth, err, site); provideErr != nil {
			return alloc.Block{}, sizeError("allocating", bytes, provideErr)
		}

		block, growth, err = h.core.Alloc(bytes, s.number)
	}
}

// provide gives a stream memory for a block, so that the caller can ask the core again. coreErr is
// the error of core.Alloc. It is nil if the core has asked for a growth.
func (h *heap) provide(
	s *Stream, bytes int64, growth alloc.Growth, coreErr error, site uint32,
) error {
	if coreErr != nil { // for example, the pool has reached its capacity
		err := newOutOfMemoryError(coreErr, nil)
		return h.takeFromOtherStreams(s, bytes, err)
	}

	err := h.growWithSmallerSegments(s, growth, site)
	err = h.addSizes(s, bytes, err)
	return h.takeFromOtherStreams(s, bytes, err)
}

// growWithSmallerSegments maps a segment. While the device has too little memory, it tries again
// with a smaller segment.
func (h *heap) growWithSmallerSegments(s *Stream, growth alloc.Growth, site uint32) error {
	for {
		err := h.grow(s, growth, site)
		if !errors.Is(err, driver.ErrOutOfMemory) {
			return err
		}

		isSmaller := h.core.Shrink(&growth)
		if !isSmaller {
			return err
		}
	}
}

// grow maps the segment that growth describes, and adds it to the pool.
func (h *heap) grow(s *Stream, growth alloc.Growth, site uint32) error {
	memory, err := h.segments.mapNext(growth.Bytes)
	if err != nil {
		return err
	}

	ordinal, err := h.core.AddSegment(growth, uint64(memory.Address()))
	if err != nil {
		unmapErr := memory.Unmap()
		return errors.Join(err, unmapErr)
	}

	stream := h.core.Number(s.number)
	h.ledger.Append(&event.Event{
		Kind: event.KindSegment, Stream: stream, Segment: ordinal,
		Size: growth.Bytes, Requested: growth.Bytes,
	}, site)
	h.segments.add(memory, ordinal, growth.Bytes, stream)
	h.registrar.setPending()
	return nil
}

// addSizes adds the sizes of the pool to an ErrOutOfMemory of the device. It returns other errors,
// and nil, unchanged. bytes is the size of the request.
func (h *heap) addSizes(s *Stream, bytes int64, err error) error {
	if !errors.Is(err, driver.ErrOutOfMemory) {
		return err
	}

	return newOutOfMemoryError(h.core.GrowFailed(bytes, s.number), err)
}

// takeFromOtherStreams handles an ErrOutOfMemory: it takes free memory of other streams and returns
// nil. If they have too little, it returns the error. It returns other errors, and nil, unchanged.
//
// It does nothing during a capture of s, because the wait for the other streams' work would become
// part of the graph. It takes no memory of streams that are being captured, or that another library
// has created and may have destroyed.
func (h *heap) takeFromOtherStreams(s *Stream, bytes int64, err error) error {
	if !errors.Is(err, ErrOutOfMemory) || s.inCapture() {
		return err
	}

	canTakeFrom := func(owner alloc.Stream) bool {
		stream := h.streams.find(owner)
		return !stream.mayBeGone() && !stream.inCapture()
	}
	isAwaited := map[alloc.Stream]bool{}
	await := func(owner alloc.Stream) error {
		if isAwaited[owner] {
			return nil
		}

		isAwaited[owner] = true
		return awaitWorkOf(h.streams.find(owner), s)
	}
	isEnough, takeErr := h.core.Seize(bytes, s.number, canTakeFrom, await)
	if isEnough {
		return nil
	}

	if takeErr != nil {
		takeErr = fmt.Errorf("taking free memory of other streams: %w", takeErr)
		return errors.Join(err, takeErr)
	}

	return err
}

// awaitWorkOf makes s wait, on the device, for the work that is queued on owner. If this work
// fails, s does not fail.
func awaitWorkOf(owner, s *Stream) error {
	workDone, err := owner.recordEvent()
	if errors.Is(err, ErrClosed) {
		return nil // a closed stream has no unfinished work
	}

	if err != nil {
		return err
	}

	return s.queue.WaitIgnoringErrors(workDone)
}

// sizeError adds a call and its size to an error. It returns an ErrSize, which contains the size,
// unchanged.
func sizeError(operation string, bytes int64, err error) error {
	if errors.Is(err, alloc.ErrSize) {
		return err
	}

	return fmt.Errorf("%s %s: %w", operation, driver.Plural(bytes, "byte"), err)
}

// reserve reserves memory for a stream, so that it can allocate blocks of the given total size
// without a new segment. If the device has too little memory for a segment, reserve also uses clean
// memory of other streams: free memory that no queued work uses.
func (h *heap) reserve(s *Stream, bytes int64, site uint32) error {
	growth, err := h.core.Reserve(bytes, s.number)
	if err != nil {
		return newOutOfMemoryError(err, nil)
	}

	const noSegment = -1
	h.ledger.Append(&event.Event{
		Kind: event.KindReserve, Stream: h.core.Number(s.number), Segment: noSegment,
		Size: growth.Bytes, Requested: bytes,
	}, site)
	hasEnough := growth.Bytes == 0
	if hasEnough {
		return nil
	}

	err = h.grow(s, growth, site)
	if errors.Is(err, driver.ErrOutOfMemory) && h.core.ReserveClean(bytes, s.number) {
		return nil
	}

	return h.addSizes(s, bytes, err)
}

// liveBlocks lists the blocks that are allocated and not freed.
func (h *heap) liveBlocks() (live []alloc.View) {
	for _, s := range h.segments.mappedSegments() {
		for b := range h.core.Blocks(s.ordinal) {
			if b.State == alloc.Live {
				live = append(live, b)
			}
		}
	}

	return live
}

// countLiveBlocks counts the live blocks of each segment that has any.
func (h *heap) countLiveBlocks() map[*segment]int {
	counts := map[*segment]int{}
	for _, b := range h.liveBlocks() {
		counts[h.segments.list[b.Segment]]++
	}

	return counts
}
