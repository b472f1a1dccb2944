package alloc

// StreamPoint identifies an event at the end of a deferred block's use on a stream.
type StreamPoint struct {
	// Deferral numbers deferred blocks from 1 in the order of their Frees.
	Deferral uint64
	Stream   Stream
}

// ReturnedBlock describes a deferred or parked block that has become free.
type ReturnedBlock struct {
	Block
	Owner uint32 // stream that owned the block; see Number
}

type reports struct {
	hasEntries bool
	toRecord   []StreamPoint
	waits      []StreamPoint
	returned   []ReturnedBlock
	trimmed    []Segment
}

func (r *reports) clear() {
	r.hasEntries = false
	r.toRecord, r.waits = r.toRecord[:0], r.waits[:0]
	r.returned, r.trimmed = r.returned[:0], r.trimmed[:0]
}

// HasReports reports whether one of the lists below has entries for the latest call. The lists are
// valid until the next change of the Core.
func (r *reports) HasReports() bool { return r.hasEntries }

// EventsToRecord lists events that the caller must record, because the latest call deferred a
// block.
func (r *reports) EventsToRecord() []StreamPoint { return r.toRecord }

// Waits lists events for which the stream of the latest Alloc must wait, on the device, before it
// uses a block from this or a later Alloc.
func (r *reports) Waits() []StreamPoint { return r.waits }

// ReturnedBlocks lists deferred and parked blocks in the order in which the latest call freed them.
func (r *reports) ReturnedBlocks() []ReturnedBlock { return r.returned }
