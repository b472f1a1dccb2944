package alloc

// Stream is the caller's name for a queue of device work. The caller can give a stream different
// names on different ranks.
type Stream int32

type stream struct {
	name            Stream
	number          uint32 // see streamTable.Number
	lastCompleteUse uint64 // the latest use.sequence that is known to be complete
	firstDeferred   uint32 // head of the list of deferred blocks of this owner, or 0
	lastDeferred    uint32
}

type streamTable struct {
	streams        []stream // by id
	streamIDs      map[Stream]uint32
	numberedCount  uint32 // excludes stream 0
	selectedStream Stream // stream of the latest request
	selectedIndex  uint32 // its index for large requests
}

// Number returns a stream's number, from 1 in the order of the first Alloc or Reserve. It is 0 for
// Stream 0 and streams without a request. Rebuild changes numbers.
func (t *streamTable) Number(name Stream) uint32 {
	streamID, isKnown := t.streamIDs[name]
	if !isKnown {
		return 0
	}

	return t.streams[streamID].number
}

// selectIndex returns the id of the stream's index for a request of roundedBytes, a multiple of
// Unit.
func (l *lifetimes) selectIndex(name Stream, roundedBytes int64) uint32 {
	if name != l.selectedStream {
		l.selectStream(name)
	}

	return l.selectedIndex + l.config.smallIndexBit(roundedBytes)
}

func (l *lifetimes) selectStream(name Stream) {
	streamID := l.ensureStream(name)
	l.assignNumber(streamID)
	l.selectedStream = name
	l.selectedIndex = 2 * streamID
}

func (l *lifetimes) ensureStream(name Stream) uint32 {
	streamID, isKnown := l.streamIDs[name]
	if !isKnown {
		streamID = l.addStream(name)
		l.indexes = append(l.indexes, nil, nil)
	}

	return streamID
}

func (t *streamTable) addStream(name Stream) uint32 {
	streamID := uint32(len(t.streams))
	t.streamIDs[name] = streamID
	t.streams = append(t.streams, stream{name: name})
	return streamID
}

func (t *streamTable) assignNumber(streamID uint32) {
	if s := &t.streams[streamID]; s.name != 0 && s.number == 0 {
		t.numberedCount++
		s.number = t.numberedCount
	}
}

func (t *streamTable) renumber() {
	for i := range t.streams {
		t.streams[i].number = 0
	}

	t.numberedCount, t.selectedStream, t.selectedIndex = 0, 0, 0
}

// A stream's index ids are 2*streamID (large requests) and 2*streamID+1.
func streamIDOf(indexID uint32) uint32 { return indexID / 2 }

func (t *streamTable) nameOfIndex(indexID uint32) Stream {
	return t.streams[streamIDOf(indexID)].name
}

func (t *streamTable) numberOfIndex(indexID uint32) uint32 {
	return t.streams[streamIDOf(indexID)].number
}

// use records that a stream other than the owner uses a block.
type use struct {
	sequence uint64 // value of useTable.useCount after the latest use
	deferral uint64 // see StreamPoint.Deferral; 0 until the block is deferred
	streamID uint32
	next     uint32 // id of the next use of the block, or of the next unused entry; 0 at the end
}

// useTable holds the uses of all blocks. The list of a block starts at rareFields.firstUse.
type useTable struct {
	uses           []use  // by id; entry 0 is unused
	firstUnusedUse uint32 // head of a free list, or 0
	useCount       uint64 // number of uses added or renewed so far
}

func (t *useTable) addUse(fields *rareFields, streamID uint32) {
	t.useCount++
	useID := t.newUse()
	t.uses[useID] = use{sequence: t.useCount, streamID: streamID, next: fields.firstUse}
	fields.firstUse = useID
}

// renewUse gives a stream's use of a block the next sequence number. It returns false if there is
// no such use.
func (t *useTable) renewUse(fields *rareFields, streamID uint32) bool {
	for useID := fields.firstUse; useID != 0; useID = t.uses[useID].next {
		if t.uses[useID].streamID == streamID {
			t.useCount++
			t.uses[useID].sequence = t.useCount
			return true
		}
	}

	return false
}

func (t *useTable) removeCompleteUses(fields *rareFields, streams []stream) {
	link := &fields.firstUse
	for *link != 0 {
		useID := *link
		streamID := t.uses[useID].streamID
		isComplete := t.uses[useID].sequence <= streams[streamID].lastCompleteUse
		if isComplete {
			*link = t.uses[useID].next
			t.recycleUse(useID)
		} else {
			link = &t.uses[useID].next
		}
	}
}

// removeDeferredUse removes a stream's use of a deferred block. It returns false if there is no
// such use, or if the block was deferred after lastDeferral.
func (t *useTable) removeDeferredUse(
	fields *rareFields, streamID uint32, lastDeferral uint64,
) bool {
	for link := &fields.firstUse; *link != 0; link = &t.uses[*link].next {
		useID := *link
		u := t.uses[useID]
		if u.streamID != streamID || u.deferral > lastDeferral {
			continue
		}

		*link = u.next
		t.recycleUse(useID)
		return true
	}

	return false
}

func (t *useTable) removeUses(fields *rareFields) {
	for fields.firstUse != 0 {
		useID := fields.firstUse
		fields.firstUse = t.uses[useID].next // before recycleUse, which changes next
		t.recycleUse(useID)
	}
}

// newUse can reallocate t.uses.
func (t *useTable) newUse() uint32 {
	if useID := t.firstUnusedUse; useID != 0 {
		t.firstUnusedUse = t.uses[useID].next
		return useID
	}

	t.uses = append(t.uses, use{})
	return uint32(len(t.uses) - 1)
}

func (t *useTable) recycleUse(useID uint32) {
	t.uses[useID].next = t.firstUnusedUse
	t.firstUnusedUse = useID
}
