package export

import (
	"io"
	"maps"
	"slices"
	"time"

	"symmem/event"
	"symmem/trace"
)

// A memory snapshot is a file that PyTorch's memory_viz page shows: a pickle, which is an encoded
// Python value. It contains the events about memory, and the segments and blocks at the end. A
// segment is a range of memory in which a pool places blocks.
//
// Each event is made from a record of a trace. One record can result in two events:
//
//	record                                  events
//	alloc of a block                        alloc
//	free of a block                         free_requested, free_completed
//	free of a block that is still in use    free_requested
//	return of such a block to its pool      free_completed

// WriteSnapshots writes a memory snapshot in PyTorch's format for each rank to a folder. It returns
// the number of events in all snapshots.
//
// Pools of groups appear as MemPools of device 0, and other pools as the default pool. Traces
// contain no addresses, so those in snapshots are invented.
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

// snapshotWriter writes the snapshot of one rank. Methods of the pickler encode parts of it: a list
// is opened, has beginItem before each item, and is closed. A dict (a Python map) is opened, has
// items with keys, and is closed.
type snapshotWriter struct {
	*pickler
	pools      *poolStates // state of the pools after the records up to now
	timeline   timeline    // has the time of the latest record
	clock      Clock       // how far the rank's clock is ahead
	eventCount int         // number of events written
}

func (s *snapshotWriter) write(log *trace.Log) error {
	s.openDict()
	s.writeKey("device_traces")
	s.openList() // the lists of events of all devices
	s.beginItem()
	s.openList() // the events of device 0
	for i := range log.Records {
		s.writeRecord(&log.Records[i])
	}

	s.closeList()
	s.closeList()
	s.writeKey("segments")
	s.writeSegments()
	s.writeKey("allocator_settings")
	s.openDict()
	s.writeTextItem("PYTORCH_CUDA_ALLOC_CONF", "")
	s.writeFalseItem("expandable_segments")
	s.closeDict()
	s.writeKey("external_annotations")
	s.openList() // remains empty
	s.closeList()
	s.closeDict()
	return s.finish()
}

// writeRecord writes the events that a record results in, and updates the state of the pools.
func (s *snapshotWriter) writeRecord(r *trace.Record) {
	s.timeline.advance(r)
	isAboutMemory := !r.Kind.IsGroupEvent() && r.Segment >= 0
	if !isAboutMemory {
		return
	}

	p := s.pools.findOrAddPool(r)
	oldSegment := p.segments[r.Segment] // before the record; nil if unknown
	var oldBlock block
	isBlockKnown := false // true if the trace contains the allocation of the block
	if oldSegment != nil {
		oldBlock, isBlockKnown = oldSegment.blocks[r.Offset]
	}

	s.pools.apply(r)
	newSegment := p.segments[r.Segment] // after the record; nil if removed
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

	default: // results in no event
	}
}

// writeFree writes the events for a record that frees or returns a block. b is the block before the
// record.
func (s *snapshotWriter) writeFree(p *poolState, address int64, b block, r *trace.Record) {
	isRequest := !b.isFreed
	if isRequest {
		s.writeEvent("free_requested", p, address, b.requestedSize, r)
	}

	isCompletion := r.Kind == event.KindFree || r.Kind == event.KindReturn
	if isCompletion {
		s.writeEvent("free_completed", p, address, b.requestedSize, r)
	}
}

// writeEvent writes an event. action is its name, such as "alloc".
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
	s.writePoolItem("pool_id", p)
	s.writeFrames(frameOf(r.Site, p.title))
	s.closeDict()
}

// writePoolItem writes a key and the ID of a pool in PyTorch. This is a pair of integers: (0, 0) is
// the default pool, and (0, 3) is MemPool 3.
func (s *snapshotWriter) writePoolItem(key string, p *poolState) {
	s.writePairItem(key, 0, p.number)
}

// writeSegments writes the list of segments at the end of the trace.
func (s *snapshotWriter) writeSegments() {
	s.openList()
	for _, p := range s.pools.ordered {
		for _, number := range slices.Sorted(maps.Keys(p.segments)) {
			s.writeSegment(p, p.segments[number])
		}
	}

	s.closeList()
}

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
	s.writePoolItem("segment_pool_id", p)
	s.writeFalseItem("is_expandable")
	s.writeFrames(frame{}) // an empty call stack
	s.writeKey("blocks")
	s.openList()
	s.writeBlocks(p, g)
	s.closeList()
	s.closeDict()
}

// writeBlocks writes the blocks of a segment in the order of their addresses. Between them, it
// writes the free memory as inactive blocks.
func (s *snapshotWriter) writeBlocks(p *poolState, g *segment) {
	end := int64(0) // offset of the end of the preceding block
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
