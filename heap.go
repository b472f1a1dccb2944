package symmem

import (
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/event"
	"symmem/internal/alloc"
	"symmem/internal/ledger"
)

// heap allocates and reserves memory in the cases in which the placement core alone cannot: if a
// stream has no free block that is large enough, it maps a segment, and then takes free memory of
// other streams. Callers must hold Pool.mu.
type heap struct {
	core      *alloc.Core
	ledger    *ledger.Ledger
	segments  *segmentTable
	uses      *useTracker
	streams   *streamList
	registrar *registrar
}

// alloc completes an allocation for which core.Alloc has returned block, growth and err. A growth
// that is not empty describes a segment that must be mapped before another core.Alloc.
func (h *heap) alloc(
	s *Stream, bytes int64, block alloc.Block, growth alloc.Growth, err error, site uint32,
) (alloc.Block, error) {
	for {
		if reclaimErr := h.uses.awaitUses(s); reclaimErr != nil {
			return alloc.Block{}, reclaimErr
		}
		if err == nil && growth.Bytes == 0 {
			return block, nil
		}
		if err != nil {
			err = newOutOfMemoryError(err, nil)
		} else if err = h.growWithSmallerSegments(s, growth, site); err != nil {
			err = h.addSizes(s, bytes, err)
		}
		if err = h.takeFromOtherStreams(s, bytes, err); err != nil {
			return alloc.Block{}, sizeError("allocating", bytes, err)
		}
		block, growth, err = h.core.Alloc(bytes, s.number)
	}
}

func sizeError(operation string, bytes int64, err error) error {
	if errors.Is(err, alloc.ErrSize) {
		return err
	}
	return fmt.Errorf("%s %s: %w", operation, driver.Plural(bytes, "byte"), err)
}

// reserve reserves memory for a stream, so that it can allocate blocks of the given total size
// without a new segment. If the device has too little memory for a segment, clean memory of other
// streams also suffices.
func (h *heap) reserve(s *Stream, bytes int64, site uint32) error {
	growth, err := h.core.Reserve(bytes, s.number)
	if err != nil {
		return newOutOfMemoryError(err, nil)
	}
	h.ledger.Append(&event.Event{
		Kind: event.KindReserve, Stream: h.core.Number(s.number), Segment: -1, Size: growth.Bytes,
		Requested: bytes,
	}, site)
	if growth.Bytes == 0 {
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

// addSizes adds the sizes of the pool to an ErrOutOfMemory of the device.
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
		return errors.Join(err, memory.Unmap())
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

// takeFromOtherStreams handles the error of an allocation. If err is an ErrOutOfMemory, it takes
// free memory of other streams, makes s wait on the device for their work, and returns nil. For
// any other err, or if the other streams have too little memory, it returns err. It skips streams
// that are being captured, because the wait would become part of the graph, and adopted streams
// that their owners may have destroyed.
func (h *heap) takeFromOtherStreams(s *Stream, bytes int64, err error) error {
	if !errors.Is(err, ErrOutOfMemory) || s.inCapture() {
		return err
	}
	canTake := func(number alloc.Stream) bool {
		stream := h.streams.find(number)
		return !stream.mayBeGone() && !stream.inCapture()
	}
	waitedFor := map[alloc.Stream]bool{}
	isEnough, takeErr := h.core.Seize(bytes, s.number, canTake, func(number alloc.Stream) error {
		if waitedFor[number] {
			return nil
		}
		waitedFor[number] = true
		e, err := h.streams.find(number).recordEvent()
		switch {
		case errors.Is(err, ErrClosed):
			return nil // a closed stream has no unfinished work
		case err != nil:
			return err
		}
		return s.queue.WaitIgnoringErrors(e)
	})
	switch {
	case isEnough:
		return nil
	case takeErr != nil:
		return errors.Join(err, fmt.Errorf("taking free memory of other streams: %w", takeErr))
	}
	return err
}

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
