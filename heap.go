package symmem

import (
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/event"
	"symmem/internal/alloc"
	"symmem/internal/ledger"
)

// heap allocates and reserves memory in the cases in which the placement core alone cannot. (The
// core is a pure allocator: it only chooses blocks in segments that are mapped already.) If a
// stream has no free block that is large enough, the heap first tries to map a segment. If that
// fails, it takes free memory of other streams. Callers must hold Pool.mu.
type heap struct {
	core      *alloc.Core
	ledger    *ledger.Ledger // the history that ranks compare
	segments  *segmentTable
	uses      *useTracker
	streams   *streamList
	registrar *registrar
}

// alloc completes an allocation for which core.Alloc has returned block, growth and err. It calls
// core.Alloc again until the core returns a block, or no memory is left. A growth that is not empty
// describes a segment that must be mapped before another core.Alloc.
func (h *heap) alloc(
	s *Stream, bytes int64, block alloc.Block, growth alloc.Growth, err error, site uint32,
) (alloc.Block, error) {
	for {
		if waitErr := h.uses.awaitUses(s); waitErr != nil {
			return alloc.Block{}, waitErr
		}

		if err == nil && growth.Bytes == 0 {
			return block, nil
		}

		if err != nil { // the pool has reached its capacity, or the size is invalid
			err = newOutOfMemoryError(err, nil)
		} else {
			err = h.growWithSmallerSegments(s, growth, site)
			err = h.addSizes(s, bytes, err)
		}

		err = h.takeFromOtherStreams(s, bytes, err)
		if err != nil {
			return alloc.Block{}, sizeError("allocating", bytes, err)
		}

		block, growth, err = h.core.Alloc(bytes, s.number)
	}
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
// without a new segment. If the device has too little memory for a segment, clean memory of other
// streams also suffices. (Clean memory can be used by any stream without a wait.)
func (h *heap) reserve(s *Stream, bytes int64, site uint32) error {
	growth, err := h.core.Reserve(bytes, s.number)
	if err != nil {
		return newOutOfMemoryError(err, nil)
	}

	h.ledger.Append(&event.Event{
		Kind: event.KindReserve, Stream: h.core.Number(s.number), Segment: -1, // in no segment
		Size: growth.Bytes, Requested: bytes,
	}, site)
	if growth.Bytes == 0 { // the stream has enough memory
		return nil
	}

	err = h.grow(s, growth, site)
	if errors.Is(err, driver.ErrOutOfMemory) && h.core.ReserveClean(bytes, s.number) {
		return nil
	}

	return h.addSizes(s, bytes, err)
}

// growWithSmallerSegments maps a segment. While the device has too little memory, it tries again
// with a smaller segment.
func (h *heap) growWithSmallerSegments(s *Stream, growth alloc.Growth, site uint32) error {
	for {
		err := h.grow(s, growth, site)
		if !errors.Is(err, driver.ErrOutOfMemory) || !h.core.Shrink(&growth) {
			return err
		}
	}
}

// addSizes adds the sizes of the pool to an ErrOutOfMemory of the device. It returns other errors,
// and nil, unchanged.
func (h *heap) addSizes(s *Stream, bytes int64, err error) error {
	if !errors.Is(err, driver.ErrOutOfMemory) {
		return err
	}

	return newOutOfMemoryError(h.core.GrowFailed(bytes, s.number), err)
}

// grow maps the segment that growth describes and adds it to the pool.
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

// takeFromOtherStreams handles the error of an allocation, which may be nil. If it is an
// ErrOutOfMemory, takeFromOtherStreams takes free memory of other streams, makes s wait on the
// device for their work, and returns nil. If the other streams have too little memory, and for
// any other error, it returns the error.
//
// It skips streams that are being captured, because the wait would become part of the graph. It
// also skips adopted streams (of other libraries) that their owners may have destroyed.
func (h *heap) takeFromOtherStreams(s *Stream, bytes int64, allocErr error) error {
	if !errors.Is(allocErr, ErrOutOfMemory) || s.inCapture() {
		return allocErr
	}

	canTake := func(number alloc.Stream) bool {
		stream := h.streams.find(number)
		return !stream.mayBeGone() && !stream.inCapture()
	}
	waitedFor := map[alloc.Stream]bool{}
	waitFor := func(number alloc.Stream) error {
		if waitedFor[number] {
			return nil
		}

		waitedFor[number] = true
		e, err := h.streams.find(number).recordEvent()
		if errors.Is(err, ErrClosed) {
			return nil // a closed stream has no unfinished work
		}

		if err != nil {
			return err
		}

		return s.queue.WaitIgnoringErrors(e) // a failure of the other stream does not affect s
	}
	isEnough, takeErr := h.core.Seize(bytes, s.number, canTake, waitFor)
	if isEnough {
		return nil
	}

	if takeErr != nil {
		takeErr = fmt.Errorf("taking free memory of other streams: %w", takeErr)
		return errors.Join(allocErr, takeErr)
	}

	return allocErr
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

func (h *heap) countLiveBlocks() map[*segment]int {
	counts := map[*segment]int{}
	for _, b := range h.liveBlocks() {
		counts[h.segments.list[b.Segment]]++
	}

	return counts
}
