package export

import (
	"io"
	"maps"
	"slices"
	"time"

	"symmem/event"
	"symmem/trace"
)

// WriteSnapshots writes a memory snapshot for each rank to a folder, and returns the number of
// events in all snapshots. PyTorch's memory_viz page shows snapshots, which are Python pickles.
//
// A pool that a group shares appears as a MemPool. All other pools appear as the default pool.
// The addresses are invented, because traces contain none.
func WriteSnapshots(folder string, t *Traces) (events int, err error) {
	err = writeFiles(t, folder, "snapshot_rank", func(w io.Writer, i int, log *trace.Log) error {
		s := snapshotWriter{
			pickler: newPickler(w), pools: newPoolStates(), timeline: timeline{now: log.Start},
			clock: t.Clocks[i],
		}
		err := s.write(log)
		events += s.eventCount
		return err
	})
	return events, err
}

// snapshotWriter writes the snapshot of one rank: the history of memory events, and the final state
// of the segments (ranges of memory) and their blocks.
type snapshotWriter struct {
	*pickler
	pools      *poolStates // state after the latest record
	timeline   timeline    // time of the latest record
	clock      Clock       // offset of the rank's clock
	eventCount int         // number of events written
}

func (s *snapshotWriter) write(log *trace.Log) error {
	s.openDict()
	s.writeKey("device_traces")
	s.writeDevices(log)
	s.writeKey("segments")
	s.writeSegments()
	s.writeKey("allocator_settings")
	s.openDict()
	s.writeTextItem("PYTORCH_CUDA_ALLOC_CONF", "")
	s.writeFalseItem("expandable_segments")
	s.closeDict()
	s.writeKey("external_annotations")
	s.openList()
	s.closeList()
	s.closeDict()
	return s.finish()
}

// writeDevices writes a list of devices. Its only item lists the events of device 0.
func (s *snapshotWriter) writeDevices(log *trace.Log) {
	s.openList()
	s.beginListItem()
	s.openList()
	for i := range log.Records {
		s.writeRecord(&log.Records[i])
	}

	s.closeList()
	s.closeList()
}

// writeRecord updates the state of the pools and writes the events of a record.
func (s *snapshotWriter) writeRecord(r *trace.Record) {
	s.timeline.advance(r)
	isAboutMemory := !r.Kind.IsGroupEvent() && r.Segment >= 0
	if !isAboutMemory {
		return
	}

	p := s.pools.findOrAddPool(r)
	oldSegment := p.segments[r.Segment] // nil if unknown
	var oldBlock block
	isBlockKnown := false
	if oldSegment != nil {
		oldBlock, isBlockKnown = oldSegment.blocks[r.Offset]
	}

	s.pools.apply(r)
	newSegment := p.segments[r.Segment] // nil if removed
	switch r.Kind {
	case event.KindSegment:
		s.writeEvent("segment_alloc", p, newSegment.address, r.Size, r)
	case event.KindTrim, event.KindRelease:
		if oldSegment != nil {
			s.writeEvent("segment_free", p, oldSegment.address, oldSegment.bytes, r)
		}
	case event.KindAlloc:
		s.writeEvent("alloc", p, newSegment.address+r.Offset, r.Requested, r)
	case event.KindFree, event.KindPark, event.KindDefer, event.KindReturn:
		if isBlockKnown {
			s.writeFree(p, newSegment.address+r.Offset, oldBlock, r)
		}

	default: // no event
	}
}

// writeFree writes free_requested, free_completed, or both. While the GPU uses a block, KindPark or
// KindDefer only requests the free, and a later KindReturn completes it.
func (s *snapshotWriter) writeFree(p *poolState, address int64, oldBlock block, r *trace.Record) {
	if !oldBlock.isFreed {
		s.writeEvent("free_requested", p, address, oldBlock.requestedSize, r)
	}

	isCompleted := r.Kind == event.KindFree || r.Kind == event.KindReturn
	if isCompleted {
		s.writeEvent("free_completed", p, address, oldBlock.requestedSize, r)
	}
}

func (s *snapshotWriter) writeEvent(
	action string, p *poolState, address, size int64, r *trace.Record,
) {
	s.eventCount++
	s.beginListItem()
	s.openDict()
	s.writeTextItem("action", action)
	s.writeIntegerItem("addr", address)
	s.writeIntegerItem("size", size)
	s.writeIntegerItem("stream", int64(r.Stream))
	correctedTime := s.timeline.now.Add(-time.Duration(s.clock.AppliedOffset))
	s.writeIntegerItem("time_us", correctedTime.UnixMicro())
	s.writeTextItem("compile_context", "N/A")
	s.writeTextItem("user_metadata", p.title)
	s.writePoolItem("pool_id", p)
	s.writeFrames(frameOf(r.Site, p.title))
	s.closeDict()
}

// writePoolItem writes PyTorch's ID of a pool: (0, 0) is the default pool, and (0, 3) is MemPool 3.
func (s *snapshotWriter) writePoolItem(key string, p *poolState) {
	s.writePairItem(key, 0, p.number)
}

func (s *snapshotWriter) writeSegments() {
	s.openList()
	for _, p := range s.pools.ordered {
		for _, number := range slices.Sorted(maps.Keys(p.segments)) {
			s.writeSegment(p, p.segments[number])
		}
	}

	s.closeList()
}

func (s *snapshotWriter) writeSegment(p *poolState, seg *segment) {
	allocatedBytes := int64(0)
	requestedBytes := int64(0)
	for _, b := range seg.blocks {
		allocatedBytes += b.size
		requestedBytes += b.requestedSize
	}

	s.beginListItem()
	s.openDict()
	s.writeIntegerItem("device", 0)
	s.writeIntegerItem("address", seg.address)
	s.writeIntegerItem("total_size", seg.bytes)
	s.writeIntegerItem("allocated_size", allocatedBytes)
	s.writeIntegerItem("active_size", allocatedBytes)
	s.writeIntegerItem("requested_size", requestedBytes)
	s.writeIntegerItem("stream", 0)
	s.writeTextItem("segment_type", "large")
	s.writePoolItem("segment_pool_id", p)
	s.writeFalseItem("is_expandable")
	s.writeFrames(frame{})
	s.writeKey("blocks")
	s.openList()
	s.writeBlocks(p, seg)
	s.closeList()
	s.closeDict()
}

// writeBlocks writes blocks in address order, and the gaps between them as inactive blocks.
func (s *snapshotWriter) writeBlocks(p *poolState, seg *segment) {
	end := int64(0) // offset of the end of the preceding block
	for _, offset := range slices.Sorted(maps.Keys(seg.blocks)) {
		b := seg.blocks[offset]
		if offset > end {
			s.writeInactiveBlock(seg.address+end, offset-end)
		}

		state := "active_allocated"
		if b.isFreed {
			state = "active_awaiting_free"
		}

		s.writeBlock(seg.address+offset, b, state, frameOf(b.callSite, p.title))
		end = offset + b.size
	}

	if end < seg.bytes {
		s.writeInactiveBlock(seg.address+end, seg.bytes-end)
	}
}

func (s *snapshotWriter) writeInactiveBlock(address, size int64) {
	s.writeBlock(address, block{size: size}, "inactive", frame{})
}

func (s *snapshotWriter) writeBlock(address int64, b block, state string, f frame) {
	s.beginListItem()
	s.openDict()
	s.writeIntegerItem("address", address)
	s.writeIntegerItem("size", b.size)
	s.writeIntegerItem("requested_size", b.requestedSize)
	s.writeTextItem("state", state)
	s.writeFrames(f)
	s.closeDict()
}
