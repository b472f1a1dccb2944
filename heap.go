package symmem

import (
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/event"
	"symmem/internal/alloc"
	"symmem/internal/ledger"
)

// heap provides memory for allocations. Its core places blocks in mapped segments. If the stream
// has no free block of the requested size, core.Alloc returns a growth, the size of a new segment.
// The heap then tries in this order:
//
//   - to map a segment of this size,
//   - to map a smaller segment, if the device has too little memory,
//   - to take free memory of other streams, and to make the stream wait for their queued work.
//
// Callers must hold Pool.mu.
type heap struct {
	core      *alloc.Core
	ledger    *ledger.Ledger // the pool's history, which ranks compare
	segments  *segmentTable
	uses      *useTracker
	streams   *streamList
	registrar *registrar // registers segments with groups
}

// alloc makes room and repeats core.Alloc until it returns a block. block, growth and coreErr are
// the results of the first core.Alloc. site is the call site, for the history.
func (h *heap) alloc(
	s *Stream, bytes int64, block alloc.Block, growth alloc.Growth, coreErr error, site uint32,
) (alloc.Block, error) {
	for {
		// Even without a block, core.Alloc may have reused memory that other streams still use.
		if err := h.uses.awaitUses(s); err != nil {
			return alloc.Block{}, err
		}

		needsSegment := growth.Bytes > 0
		hasBlock := coreErr == nil && !needsSegment
		if hasBlock {
			return block, nil
		}

		if err := h.makeRoom(s, bytes, growth, coreErr, site); err != nil {
			return alloc.Block{}, sizeError("allocating", bytes, err)
		}

		block, growth, coreErr = h.core.Alloc(bytes, s.number)
	}
}

// makeRoom gives a stream enough memory for the next core.Alloc.
func (h *heap) makeRoom(
	s *Stream, bytes int64, growth alloc.Growth, coreErr error, site uint32,
) error {
	var growErr error
	if coreErr != nil { // for example, the pool has reached its capacity
		growErr = newOutOfMemoryError(coreErr, nil)
	} else {
		deviceErr := h.growAsDevicePermits(s, growth, site)
		growErr = h.addSizes(s, bytes, deviceErr)
	}

	isOutOfMemory := errors.Is(growErr, ErrOutOfMemory)
	if !isOutOfMemory {
		return growErr // nil if the pool has grown
	}

	hasTaken, takeErr := h.takeFromOtherStreams(s, bytes)
	if hasTaken {
		return nil
	}

	if takeErr != nil {
		takeErr = fmt.Errorf("taking free memory of other streams: %w", takeErr)
		return errors.Join(growErr, takeErr)
	}

	return growErr
}

// growAsDevicePermits repeats grow with smaller segments while the device has too little memory.
func (h *heap) growAsDevicePermits(s *Stream, growth alloc.Growth, site uint32) error {
	for {
		err := h.grow(s, growth, site)
		if !errors.Is(err, ErrOutOfMemory) {
			return err
		}

		hasShrunk := h.core.Shrink(&growth)
		if !hasShrunk {
			return err
		}
	}
}

// grow maps a segment and adds it to the pool.
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

	streamInPool := h.core.Number(s.number)
	h.ledger.Append(&event.Event{
		Kind: event.KindSegment, Stream: streamInPool, Segment: ordinal,
		Size: growth.Bytes, Requested: growth.Bytes,
	}, site)
	h.segments.add(memory, ordinal, growth.Bytes, streamInPool)
	h.registrar.setPending() // so that groups register the segment
	return nil
}

// addSizes adds the request and the pool's sizes to an ErrOutOfMemory of the device. It returns
// other errors unchanged.
func (h *heap) addSizes(s *Stream, bytes int64, err error) error {
	if !errors.Is(err, ErrOutOfMemory) {
		return err
	}

	return newOutOfMemoryError(h.core.GrowFailed(bytes, s.number), err)
}

// takeFromOtherStreams gives s free memory of other streams, enough for bytes, and makes s wait for
// their work.
func (h *heap) takeFromOtherStreams(s *Stream, bytes int64) (hasTaken bool, err error) {
	if s.inCapture() {
		return false, nil // the graph would contain the wait for other streams
	}

	canTakeFrom := func(owner alloc.Stream) bool {
		stream := h.streams.find(owner)
		return !stream.mayBeGone() && !stream.inCapture()
	}
	isAwaited := map[alloc.Stream]bool{}
	awaitOnce := func(owner alloc.Stream) error {
		if isAwaited[owner] {
			return nil
		}

		isAwaited[owner] = true
		return makeWait(s, h.streams.find(owner))
	}
	return h.core.Seize(bytes, s.number, canTakeFrom, awaitOnce)
}

// makeWait makes later work on s wait for the queued work of other, which may fail without making s
// fail.
func makeWait(s, other *Stream) error {
	workDone, err := other.recordEvent()
	if errors.Is(err, ErrClosed) {
		return nil // a closed stream has no unfinished work
	}

	if err != nil {
		return err
	}

	return s.queue.WaitIgnoringErrors(workDone)
}

func sizeError(operation string, bytes int64, err error) error {
	if errors.Is(err, alloc.ErrSize) {
		return err // its text contains the size
	}

	return fmt.Errorf("%s %s: %w", operation, driver.Plural(bytes, "byte"), err)
}

// reserve ensures that later allocations of a stream, of the given total size, need no new segment.
// If the device has too little memory, it takes clean memory of other streams: free memory that no
// queued work uses.
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
	needsSegment := growth.Bytes > 0
	if !needsSegment {
		return nil
	}

	err = h.grow(s, growth, site)
	if errors.Is(err, ErrOutOfMemory) && h.core.ReserveClean(bytes, s.number) {
		return nil
	}

	return h.addSizes(s, bytes, err)
}

// liveBlocks lists the blocks of buffers that have not been freed.
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
