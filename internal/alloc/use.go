package alloc

// use is the use of a block by a stream that does not own it.
type use struct {
	// sequence is the block's StreamPoint.Deferral if the block is deferred. Otherwise, it is the
	// useTable.useCount when the use was recorded last.
	sequence uint64
	streamID uint32
	next     uint32 // id of the next use of the block or the next unused entry, or 0
}

// useTable holds the uses of all blocks.
type useTable struct {
	uses           []use  // by id; id 0 means none
	firstUnusedUse uint32 // id of the first unused entry, or 0
	useCount       uint64 // number of calls that have recorded a use
}

// addUse records a use on a stream, which must not have one.
func (t *useTable) addUse(fields *rareFields, streamID uint32) {
	t.useCount++
	useID := t.newUse()
	t.uses[useID] = use{sequence: t.useCount, streamID: streamID, next: fields.firstUse}
	fields.firstUse = useID
}

// renewUse records that a stream uses a block again. It returns false if the block has no use on
// this stream.
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

// removeUse removes the use of a deferred block on a stream, and reports whether there was one. It
// keeps the use if the number of the deferral is above lastDeferral.
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

// removeUses removes all uses of a block.
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
