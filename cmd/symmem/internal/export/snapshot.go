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
// the number of pool events written.
//
// Pools with a domain appear as MemPools of device 0. Other pools appear as the default pool. The
// addresses are artificial, because traces contain no addresses.
func WriteSnapshots(folder string, t *Traces) (events int, err error) {
	err = writeFiles(t, folder, "snapshot_rank", func(w io.Writer, i int, l *trace.Log) error {
		s := snapshot{
			pickler: newPickler(w), memory: newMemory(), time: timeline{l.Start}, clock: t.Clocks[i],
		}
		err := s.write(l)
		events += s.events
		return err
	})
	return events, err
}

type snapshot struct {
	*pickler
	memory *memory
	time   timeline
	clock  Clock
	events int
}

func (s *snapshot) write(l *trace.Log) error {
	s.openDict()
	s.key("device_traces")
	s.openList()
	s.item()
	s.openList()
	for i := range l.Records {
		s.record(&l.Records[i])
	}
	s.closeList()
	s.closeList()
	s.key("segments")
	s.openList()
	for _, p := range s.memory.order {
		for _, ordinal := range slices.Sorted(maps.Keys(p.segments)) {
			s.segment(p, p.segments[ordinal])
		}
	}
	s.closeList()
	s.key("allocator_settings")
	s.openDict()
	s.textItem("PYTORCH_CUDA_ALLOC_CONF", "")
	s.falseItem("expandable_segments")
	s.closeDict()
	s.key("external_annotations")
	s.openList()
	s.closeList()
	s.closeDict()
	return s.finish()
}

func (s *snapshot) record(r *trace.Record) {
	s.time.at(r)
	if r.Kind.IsGroupEvent() || r.Segment < 0 {
		return
	}
	p := s.memory.poolOf(r)
	before := p.segments[r.Segment]
	var freed block
	known := false // whether the trace contains the allocation of the block
	if before != nil {
		freed, known = before.blocks[r.Offset]
	}
	s.memory.apply(r)
	switch after := p.segments[r.Segment]; r.Kind {
	case event.KindSegment:
		s.entry("segment_alloc", p, after.address, r.Size, r)
	case event.KindTrim, event.KindRelease:
		if before != nil {
			s.entry("segment_free", p, before.address, before.bytes, r)
		}
	case event.KindAlloc:
		s.entry("alloc", p, after.address+r.Offset, r.Requested, r)
	case event.KindFree, event.KindPark, event.KindDefer, event.KindReturn:
		if known {
			s.free(p, after.address+r.Offset, freed, r)
		}
	default:
	}
}

// free writes the events of freeing block b. If a record only requests the free, a later record
// completes it.
func (s *snapshot) free(p *pool, address int64, b block, r *trace.Record) {
	if !b.freed {
		s.entry("free_requested", p, address, b.requested, r)
	}
	if r.Kind == event.KindFree || r.Kind == event.KindReturn {
		s.entry("free_completed", p, address, b.requested, r)
	}
}

func (s *snapshot) entry(action string, p *pool, address, size int64, r *trace.Record) {
	s.events++
	s.item()
	s.openDict()
	s.textItem("action", action)
	s.integerItem("addr", address)
	s.integerItem("size", size)
	s.integerItem("stream", int64(r.Stream))
	s.integerItem("time_us", s.time.now.Add(-time.Duration(s.clock.Offset)).UnixMicro())
	s.textItem("compile_context", "N/A")
	s.textItem("user_metadata", p.title)
	s.pairItem("pool_id", 0, p.number)
	s.frames(site(r.Site, p.title))
	s.closeDict()
}

// segment writes a segment as it was at the end of the trace.
func (s *snapshot) segment(p *pool, g *segment) {
	active, requested := int64(0), int64(0)
	for _, b := range g.blocks {
		active += b.size
		requested += b.requested
	}
	s.item()
	s.openDict()
	s.integerItem("device", 0)
	s.integerItem("address", g.address)
	s.integerItem("total_size", g.bytes)
	s.integerItem("allocated_size", active)
	s.integerItem("active_size", active)
	s.integerItem("requested_size", requested)
	s.integerItem("stream", 0)
	s.textItem("segment_type", "large")
	s.pairItem("segment_pool_id", 0, p.number)
	s.falseItem("is_expandable")
	s.frames(frame{})
	s.key("blocks")
	s.openList()
	end := int64(0)
	for _, offset := range slices.Sorted(maps.Keys(g.blocks)) {
		b := g.blocks[offset]
		if offset > end {
			s.block(g.address+end, offset-end, 0, "inactive", frame{})
		}
		state := "active_allocated"
		if b.freed {
			state = "active_awaiting_free"
		}
		s.block(g.address+offset, b.size, b.requested, state, site(b.site, p.title))
		end = offset + b.size
	}
	if end < g.bytes {
		s.block(g.address+end, g.bytes-end, 0, "inactive", frame{})
	}
	s.closeList()
	s.closeDict()
}

func (s *snapshot) block(address, size, requested int64, state string, f frame) {
	s.item()
	s.openDict()
	s.integerItem("address", address)
	s.integerItem("size", size)
	s.integerItem("requested_size", requested)
	s.textItem("state", state)
	s.frames(f)
	s.closeDict()
}
