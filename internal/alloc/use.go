package alloc

// use records that a stream other than the owner uses a block. A freed block with uses is deferred:
// its memory stays allocated until the host knows that these streams have finished.
type use struct {
	// sequence is the value of useTable.useCount after the latest use. Once the block is deferred,
	// sequence is the number of the deferral.
	sequence uint64
	streamID uint32 // index in streamTable.streams
	next     uint32 // id of the next use of the block, or of the next unused entry; 0 at the end
}

// useTable holds the uses of all blocks. The list of a block starts at rareFields.firstUse.
type useTable struct {
	uses           []use  // by id; id 0 means none
	firstUnusedUse uint32 // head of a free list, or 0
	useCount       uint64 // number of uses recorded or renewed so far
}

// addUse records the first use of a block by a stream. Later uses call renewUse.
func (t *useTable) addUse(fields *rareFields, streamID uint32) {
	t.useCount++
	useID := t.newUse()
	t.uses[useID] = use{sequence: t.useCount, streamID: streamID, next: fields.firstUse}
	fields.firstUse = useID
}

// renewUse gives a use the next sequence number. It returns false if the stream has no recorded
// use.
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

// removeCompleteUses removes the uses up to the lastCompleteUse of their streams. The block must
// not be deferred yet.
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

// removeUse removes a stream's use of a deferred block. It returns false if the block has no such
// use, or was deferred after lastDeferral.
func (t *useTable) removeUse(fields *rareFields, streamID uint32, lastDeferral uint64) bool {
	for link := &fields.firstUse; *link != 0; link = &t.uses[*link].next {
		useID := *link
		isOfStream := t.uses[useID].streamID == streamID
		isDeferredLater := t.uses[useID].sequence > lastDeferral
		if !isOfStream || isDeferredLater {
			continue
		}

		*link = t.uses[useID].next
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
