package alloc

// use records that a stream other than the owner uses a block. Until the host knows that this work
// is complete, a freed block is deferred, and its memory stays allocated.
type use struct {
	// sequence is useTable.useCount when the use was recorded. Once the block is deferred, it is the
	// number of this deferral.
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

// renewUse makes a recorded use the latest. It returns false if the stream has no recorded use.
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

// removeCompleteUses removes the uses up to each stream's lastCompleteUse. The block must not be
// deferred yet. streams is streamTable.streams.
func (t *useTable) removeCompleteUses(fields *rareFields, streams []stream) {
	link := &fields.firstUse // the firstUse or next field that holds the current id
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

// removeUse removes a stream's use of a deferred block, unless the block was deferred after
// lastDeferral. It reports whether it has removed a use.
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
