package snapshot

import (
	"cmp"
	"fmt"
	"slices"

	"symmem/cmd/symmem/internal/diff/history"
	"symmem/cmd/symmem/internal/diff/plain"
)

// malformedSnapshot returns an error that wraps plain.ErrFormat. In the text, "it" is the file.
func malformedSnapshot(format string, args ...any) error {
	return fmt.Errorf("%w: %s", plain.ErrFormat, fmt.Sprintf(format, args...))
}

// Finish adds the events of one device to the rank. Call it after AddElement has read all elements
// of the streamed lists. top is the top-level value of the file. A negative device selects the only
// device with events.
func (r *Reader) Finish(d *plain.Document, top plain.Value, device int) error {
	r.rank.Format = "PyTorch memory snapshot"
	if r.unknownActionCount > 0 {
		r.rank.AddNote("%d events have unknown actions and are left out", r.unknownActionCount)
	}

	settings := d.Get(top, d.StringValue("allocator_settings"))
	if d.Get(settings, d.StringValue("trace_alloc_overflowed")).Bool() {
		r.rank.AddNote("the trace has overflowed: its beginning is lost")
	}

	device, err := r.chooseDevice(device)
	if err != nil {
		return err
	}

	setting := unsupportedSetting(d, settings)
	// Do not use d below, so that the garbage collector can free it.
	var trace []rawEvent // remains empty if the device has no events
	if device < len(r.traces) {
		trace = r.traces[device]
	}

	r.traces = nil // frees the events of other devices
	backward := newBackwardPass(int64(device), r.segments)
	begin := backward.undoEvents(trace) // index of the first usable event
	if begin > 0 {
		r.rank.AddNote("the events before event %d are left out, because they contradict the state at "+
			"the end: the trace has overflowed, or recording was interrupted", begin)
	}

	forward := newForwardPass(r.rank, backward)
	forward.run(trace[begin:])
	if setting != "" {
		for _, s := range r.rank.Sequences {
			s.UnsupportedSetting = setting
		}
	}

	return nil
}

// unsupportedSetting returns the name of a setting of PyTorch's allocator that changes how PyTorch
// places blocks, or "" if no such setting is in use. The diff command cannot replay the placement
// with such a setting.
func unsupportedSetting(d *plain.Document, settings plain.Value) string {
	const unlimited = 1 << 50 // larger than any block
	splitSize, ok := d.Get(settings, d.StringValue("max_split_size")).Int()
	if ok && splitSize > 0 && splitSize < unlimited {
		return "max_split_size"
	}

	threshold := d.Get(settings, d.StringValue("garbage_collection_threshold")) // from 0 to 1
	wholeThreshold, isWhole := threshold.Int()
	isDisabled := threshold.IsNone() || (isWhole && wholeThreshold == 0)
	if !isDisabled {
		return "garbage_collection_threshold"
	}

	// The items are sizes and numbers of divisions in turn. Numbers up to 1 have no effect: PyTorch
	// then rounds sizes up to multiples of 512 bytes, as it does by default.
	divisions := d.Items(d.Get(settings, d.StringValue("roundup_power2_divisions")))
	for i := 1; i < len(divisions); i += 2 {
		if n, _ := divisions[i].Int(); n > 1 {
			return "roundup_power2_divisions"
		}
	}

	return ""
}

// chooseDevice returns the device whose events Finish adds. requested is the device that the user
// has selected, or negative. If that is negative and no device has events, chooseDevice sets
// LacksTrace and returns the device of the first segment.
func (r *Reader) chooseDevice(requested int) (int, error) {
	var devices []int // the devices with events
	for i, events := range r.traces {
		if len(events) > 0 {
			devices = append(devices, i)
		}
	}

	if requested >= 0 {
		if len(devices) > 0 && !slices.Contains(devices, requested) {
			return 0, malformedSnapshot("it has events of the devices %v, but not of device %d",
				devices, requested)
		}

		return requested, nil
	}

	if len(devices) > 1 {
		return 0, malformedSnapshot("it has events of the devices %v: select one with --device",
			devices)
	}

	if len(devices) == 1 {
		return devices[0], nil
	}

	r.rank.LacksTrace = true
	r.rank.AddNote("no events were recorded, so the rank was not compared")
	if len(r.segments) == 0 {
		return 0, nil
	}

	return int(max(r.segments[0].device, 0)), nil
}

// liveSegment is a segment (a range of memory) that is mapped at some point in the trace.
type liveSegment struct {
	address      uint64
	bytes        int64
	pool         poolID // unknownPool until an event reveals the pool
	stream       int64  // see rawEvent
	isExpandable bool
	isInitial    bool  // mapped before the trace began
	number       int32 // index in Sequence.Segments, or -1 before the first use
}

// segmentMap contains segments, sorted by address.
type segmentMap struct{ all []*liveSegment }

// find returns the index of the segment at an address, and true. If there is none, it returns the
// index at which to insert it, and false.
func (m *segmentMap) find(address uint64) (int, bool) {
	return slices.BinarySearchFunc(m.all, address, func(s *liveSegment, a uint64) int {
		return cmp.Compare(s.address, a)
	})
}

// findContaining returns the segment in which an address lies, or nil if there is none.
func (m *segmentMap) findContaining(address uint64) *liveSegment {
	i, isBeginning := m.find(address)
	if !isBeginning {
		i-- // the last segment that begins below the address
	}

	if i < 0 {
		return nil
	}

	s := m.all[i]
	offset := address - s.address
	if offset >= uint64(max(s.bytes, 1)) { // an empty segment contains the address at its beginning
		return nil
	}

	return s
}

// add adds a segment, or returns false if there is already one at the same address.
func (m *segmentMap) add(s *liveSegment) bool {
	i, isPresent := m.find(s.address)
	if isPresent {
		return false
	}

	m.all = slices.Insert(m.all, i, s)
	return true
}

// remove removes the segment at an address and returns it, or nil if there is none.
func (m *segmentMap) remove(address uint64) *liveSegment {
	i, isPresent := m.find(address)
	if !isPresent {
		return nil
	}

	s := m.all[i]
	m.all = slices.Delete(m.all, i, i+1)
	return s
}

// backwardPass reconstructs the state at the beginning of a trace. It begins with the state at the
// end, and undoes the events from the last to the first.
type backwardPass struct {
	segments      segmentMap
	blocks        map[uint64]finalBlock // live blocks by address
	hasExpandable bool                  // whether an expandable segment occurs
}

func newBackwardPass(device int64, segments []finalSegment) *backwardPass {
	b := &backwardPass{blocks: map[uint64]finalBlock{}}
	sorted := slices.Clone(segments)
	slices.SortStableFunc(sorted, func(x, y finalSegment) int {
		return cmp.Compare(x.address, y.address)
	})
	for _, s := range sorted {
		if s.device != device {
			continue
		}

		b.hasExpandable = b.hasExpandable || s.isExpandable
		b.segments.add(&liveSegment{
			address: s.address, bytes: s.bytes, pool: s.pool, stream: s.stream, isExpandable: s.isExpandable,
		})
		for _, block := range s.blocks {
			b.blocks[block.address] = block
		}
	}

	return b
}

// undoEvents undoes the events of a trace, the last one first. It stops at an event that
// contradicts the state after it. undoEvents returns the index of the event after this one, or 0 if
// there is no contradiction.
func (b *backwardPass) undoEvents(trace []rawEvent) int {
	for i := len(trace) - 1; i >= 0; i-- {
		if !b.undoEvent(&trace[i]) {
			return i + 1
		}
	}

	return 0
}

// undoEvent undoes an event, and reports whether the event agrees with the state after it. For
// example, a block must be live after its allocation. If the pool of either the event or its
// segment is unknown, undoEvent sets it to the pool of the other.
func (b *backwardPass) undoEvent(e *rawEvent) bool {
	_, wasLiveAfter := b.blocks[e.address]
	switch e.action {
	case actionAlloc:
		delete(b.blocks, e.address)
		if s := b.segments.findContaining(e.address); s != nil && s.pool == unknownPool {
			s.pool = e.pool
		}

		return wasLiveAfter
	case actionFreeRequested: // the block is live until the free completes
		if wasLiveAfter {
			b.blocks[e.address] = finalBlock{address: e.address, size: e.size}
		}

		return wasLiveAfter
	case actionFreeCompleted:
		b.blocks[e.address] = finalBlock{address: e.address, size: e.size, isFreePending: true}
		return !wasLiveAfter
	case actionSegmentAlloc:
		s := b.segments.remove(e.address)
		if s != nil && e.pool == unknownPool {
			e.pool = s.pool
		}

		return s != nil
	case actionSegmentFree:
		return b.segments.add(&liveSegment{
			address: e.address, bytes: e.size, pool: e.pool, stream: e.stream,
		})
	case actionSegmentMap, actionSegmentUnmap: // not undone: with these, places are not compared
		b.hasExpandable = true
	case actionIgnored:
	}

	return true
}

// classOf returns the class of a pool and its ID within the class. The two numbers of p are (0, 0)
// for the default pool, (0, ID) for a MemPool, and (ID, 0) for the pool of a graph.
func classOf(p poolID) (history.Class, string) {
	switch {
	case p == poolID{}:
		return history.DefaultPool, ""
	case p == unknownPool:
		return history.UnknownPool, ""
	case p[0] == 0:
		return history.MemPool, fmt.Sprint(p[1])
	}

	return history.GraphPool, fmt.Sprint(p[0])
}
