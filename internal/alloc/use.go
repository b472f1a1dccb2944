package alloc

// Suppose that stream 1 owns a block, and that the streams 2 and 3 have used it too. The block then
// has two uses. When the program frees the block, work of these streams may still be running:
//
//   - The host may already know that stream 2 has completed its work since the use was recorded.
//     removeCompleteUses then removes the use.
//   - The use of stream 3 is left, so the block becomes deferred: its memory is not free yet.
//   - Later, the host waits for stream 3. removeUse removes the use, and the block becomes free.
//
// For this, the uses are numbered in the order in which they are recorded, and the deferred blocks
// in the order in which they are deferred.

// use is the use of a block by a stream that does not own the block. The uses of a block form a
// list, which starts at rareFields.firstUse.
type use struct {
	// sequence is the number of the use. Once the block is deferred, it is the number of the block.
	sequence uint64
	streamID uint32 // index in streamTable.streams
	next     uint32 // id of the next use of the block, or of the next unused entry; 0 at the end
}

// useTable holds the uses of all blocks.
type useTable struct {
	uses           []use  // by id; id 0 means none
	firstUnusedUse uint32 // id of the first unused entry, or 0
	useCount       uint64 // number of uses recorded or renewed so far
}

// addUse records the use of a block by a stream. The block must have no use by this stream.
func (t *useTable) addUse(fields *rareFields, streamID uint32) {
	t.useCount++
	useID := t.newUse()
	t.uses[useID] = use{sequence: t.useCount, streamID: streamID, next: fields.firstUse}
	fields.firstUse = useID
}

// renewUse gives the use of a block by a stream a new number. It returns false if there is none.
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

// removeCompleteUses removes those uses of a block that are known to be complete: the uses by a
// stream up to the number lastCompleteUse. The block must not be deferred yet. streams is
// streamTable.streams.
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

// removeUse removes the use of a deferred block by a stream, and reports whether it has removed
// one. It keeps the use if the number of the block is above lastDeferral.
func (t *useTable) removeUse(fields *rareFields, streamID uint32, lastDeferral uint64) bool {
	// link points to the id of the current use.
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

// recycleUse adds an entry to the unused ones.
func (t *useTable) recycleUse(useID uint32) {
	t.uses[useID].next = t.firstUnusedUse
	t.firstUnusedUse = useID
}
