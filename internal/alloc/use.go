package alloc

// use is the use of a block by a stream that does not own it.
type use struct {
	// sequence is StreamPoint.Deferral of a deferred block. For other blocks, it is
	// useTable.useCount when the use was recorded last.
	sequence uint64
	streamID uint32
	next     uint32 // next use of the block, or next unused entry
}

type useTable struct {
	uses           []use
	firstUnusedUse uint32
	useCount       uint64
}

func (t *useTable) addUse(fields *rareFields, streamID uint32) {
	t.useCount++
	useID := t.newUse()
	t.uses[useID] = use{sequence: t.useCount, streamID: streamID, next: fields.firstUse}
	fields.firstUse = useID
}

// renewUse reports whether the block had a use on this stream.
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

// removeUse reports whether a deferred block had a use on the stream. It ignores uses with a
// deferral number above lastDeferral.
func (t *useTable) removeUse(fields *rareFields, streamID uint32, lastDeferral uint64) bool {
	for link := &fields.firstUse; *link != 0; link = &t.uses[*link].next {
		useID := *link
		if t.uses[useID].streamID != streamID || t.uses[useID].sequence > lastDeferral {
			continue
		}
		*link = t.uses[useID].next
		t.recycleUse(useID)
		return true
	}
	return false
}

// removeCompleteUses removes uses that are known to be complete.
func (t *useTable) removeCompleteUses(fields *rareFields, streams []stream) {
	for link := &fields.firstUse; *link != 0; {
		useID := *link
		if t.uses[useID].sequence > streams[t.uses[useID].streamID].lastCompleteUse {
			link = &t.uses[useID].next
			continue
		}
		*link = t.uses[useID].next
		t.recycleUse(useID)
	}
}

func (t *useTable) removeUses(fields *rareFields) {
	for fields.firstUse != 0 {
		useID := fields.firstUse
		fields.firstUse = t.uses[useID].next
		t.recycleUse(useID)
	}
}

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
