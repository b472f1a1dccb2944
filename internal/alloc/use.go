package alloc

// use is the use of a block by a stream that does not own the block. The uses of a block form a
// list, which starts at rareFields.firstUse. A freed block with uses is deferred: its memory
// becomes free once the work of these streams is complete.
type use struct {
	// sequence is the number of the block's deferral (StreamPoint.Deferral) if the block is
	// deferred. Otherwise, it is the value that useTable.useCount had when the use was last
	// recorded.
	sequence uint64
	streamID uint32 // index in streamTable.streams
	next     uint32 // id of the next use of the block or the next unused entry, or 0
}

// useTable holds the uses of all blocks.
type useTable struct {
	uses           []use  // by id; id 0 means none
	firstUnusedUse uint32 // id of the first unused entry, or 0
	useCount       uint64 // number of calls that have recorded or renewed a use
}

// addUse records the use of a block on a stream. The block must not have a use on this stream.
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

// removeUse removes the use of a deferred block on a stream, and reports whether it has removed
// one. It keeps the use if the block was deferred after the deferral with the number lastDeferral.
func (t *useTable) removeUse(fields *rareFields, streamID uint32, lastDeferral uint64) bool {
	// link points to the id of the current use, in the previous use or in fields.
	for link := &fields.firstUse; *link != 0; link = &t.uses[*link].next {
		useID := *link
		if t.uses[useID].streamID != streamID || t.uses[useID].sequence > lastDeferral {
			continue // a use on another stream or by a later deferral
		}

		*link = t.uses[useID].next
		t.recycleUse(useID)
		return true
	}

	return false
}

// removeCompleteUses removes those uses of a block whose stream is known to have completed its
// work. The block must not be deferred yet. streams is streamTable.streams.
func (t *useTable) removeCompleteUses(fields *rareFields, streams []stream) {
	link := &fields.firstUse // points to the id of the current use
	for *link != 0 {
		useID := *link
		isComplete := t.uses[useID].sequence <= streams[t.uses[useID].streamID].lastCompleteUse
		if isComplete {
			*link = t.uses[useID].next
			t.recycleUse(useID)
		} else {
			link = &t.uses[useID].next
		}
	}
}

// removeUses removes all uses of a block.
func (t *useTable) removeUses(fields *rareFields) {
	for fields.firstUse != 0 {
		useID := fields.firstUse
		fields.firstUse = t.uses[useID].next // before recycleUse, which changes next
		t.recycleUse(useID)
	}
}

// newUse returns the id of an unused entry. It can reallocate the table.
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
