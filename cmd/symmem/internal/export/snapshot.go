package export

import (
	"io"
	"maps"
	"slices"
	"time"

	"symmem/event"
	"symmem/trace"
)

// WriteSnapshots writes a memory snapshot in PyTorch's format for each rank to a folder. It returns
// the number of events written. Pools of groups appear as MemPools of device 0, and other pools as
// the default pool. The addresses are invented, because traces contain none.
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

// snapshotWriter writes the snapshot of one rank.
type snapshotWriter struct {
	*pickler
	pools      *poolStates // state after the records written so far
	timeline   timeline    // times of the records
	clock      Clock       // corrects the times
	eventCount int         // number of events written
}

func (s *snapshotWriter) write(log *trace.Log) error {
	s.openDict()
	s.writeKey("device_traces")
	s.openList()
	s.beginItem() // the trace of device 0
	s.openList()
	for i := range log.Records {
		s.writeRecord(&log.Records[i])
	}

	s.closeList()
	s.closeList()
	s.writeKey("segments") // the state after the last record
	s.openList()
	for _, p := range s.pools.ordered {
		for _, number := range slices.Sorted(maps.Keys(p.segments)) {
			s.writeSegment(p, p.segments[number])
		}
	}

	s.closeList()
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

// writeRecord writes the events that correspond to a record, and updates the state of the pools.
func (s *snapshotWriter) writeRecord(r *trace.Record) {
	s.timeline.advance(r)
	if r.Kind.IsGroupEvent() || r.Segment < 0 { // not about memory
		return
	}

	p := s.pools.findOrAddPool(r)
	oldSegment := p.segments[r.Segment] // before the record; can be nil
	var oldBlock block
	isKnown := false // whether the trace contains the block's allocation
	if oldSegment != nil {
		oldBlock, isKnown = oldSegment.blocks[r.Offset]
	}

	s.pools.apply(r)
	newSegment := p.segments[r.Segment] // after the record; can be nil
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
		if isKnown {
			s.writeFree(p, newSegment.address+r.Offset, oldBlock, r)
		}

	default: // has no corresponding event
	}
}

// writeFree writes the events that correspond to a record of a free: the request, the completion,
// or both. b is the block before the record.
func (s *snapshotWriter) writeFree(p *poolState, address int64, b block, r *trace.Record) {
	isRequest := !b.isFreed
	if isRequest {
		s.writeEvent("free_requested", p, address, b.requestedSize, r)
	}

	// A block that is still in use is parked or deferred first, and returned later.
	isCompletion := r.Kind == event.KindFree || r.Kind == event.KindReturn
	if isCompletion {
		s.writeEvent("free_completed", p, address, b.requestedSize, r)
	}
}

// writeEvent writes an event of the given action with the stream and the call site of r.
func (s *snapshotWriter) writeEvent(
	action string, p *poolState, address, size int64, r *trace.Record,
) {
	s.eventCount++
	s.beginItem()
	s.openDict()
	s.writeTextItem("action", action)
	s.writeIntegerItem("addr", address)
	s.writeIntegerItem("size", size)
	s.writeIntegerItem("stream", int64(r.Stream))
	correctedTime := s.timeline.now.Add(-time.Duration(s.clock.AppliedOffset))
	s.writeIntegerItem("time_us", correctedTime.UnixMicro())
	s.writeTextItem("compile_context", "N/A")
	s.writeTextItem("user_metadata", p.title)
	s.writePairItem("pool_id", 0, p.number) // (0, 0) is the default pool, and (0, n) a MemPool
	s.writeFrames(frameOf(r.Site, p.title))
	s.closeDict()
}

// writeSegment writes the state of a segment at the end of the trace.
func (s *snapshotWriter) writeSegment(p *poolState, g *segment) {
	allocatedBytes := int64(0)
	requestedBytes := int64(0)
	for _, b := range g.blocks {
		allocatedBytes += b.size
		requestedBytes += b.requestedSize
	}

	s.beginItem()
	s.openDict()
	s.writeIntegerItem("device", 0)
	s.writeIntegerItem("address", g.address)
	s.writeIntegerItem("total_size", g.bytes)
	s.writeIntegerItem("allocated_size", allocatedBytes)
	s.writeIntegerItem("active_size", allocatedBytes)
	s.writeIntegerItem("requested_size", requestedBytes)
	s.writeIntegerItem("stream", 0)
	s.writeTextItem("segment_type", "large")
	s.writePairItem("segment_pool_id", 0, p.number)
	s.writeFalseItem("is_expandable")
	s.writeFrames(frame{})
	s.writeKey("blocks")
	s.openList()
	s.writeBlocks(p, g)
	s.closeList()
	s.closeDict()
}

// writeBlocks writes the blocks of a segment in the order of their addresses, and the free memory
// between them as inactive blocks.
func (s *snapshotWriter) writeBlocks(p *poolState, g *segment) {
	end := int64(0) // end of the preceding block
	for _, offset := range slices.Sorted(maps.Keys(g.blocks)) {
		b := g.blocks[offset]
		if offset > end {
			s.writeInactiveBlock(g.address+end, offset-end)
		}

		state := "active_allocated"
		if b.isFreed {
			state = "active_awaiting_free"
		}

		s.writeBlock(g.address+offset, b, state, frameOf(b.callSite, p.title))
		end = offset + b.size
	}

	if end < g.bytes {
		s.writeInactiveBlock(g.address+end, g.bytes-end)
	}
}

func (s *snapshotWriter) writeInactiveBlock(address, size int64) {
	noCallSite := frame{}
	s.writeBlock(address, block{size: size}, "inactive", noCallSite)
}

func (s *snapshotWriter) writeBlock(address int64, b block, state string, callSite frame) {
	s.beginItem()
	s.openDict()
	s.writeIntegerItem("address", address)
	s.writeIntegerItem("size", b.size)
	s.writeIntegerItem("requested_size", b.requestedSize)
	s.writeTextItem("state", state)
	s.writeFrames(callSite)
	s.closeDict()
}
