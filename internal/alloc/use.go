package alloc

// use records that a stream other than the owner uses a block.
type use struct {
	// sequence is the deferral number (StreamPoint.Deferral) of a deferred block. For other blocks,
	// it is the value of useTable.useCount when the use was last recorded.
	sequence uint64
	streamID uint32 // index in streamTable.streams
	next     uint32 // next use of the block, or next unused record
}

type useTable struct {
	uses           []use // index 0 means none
	firstUnusedUse uint32
	useCount       uint64 // number of uses recorded so far
}

func (t *useTable) addUse(fields *rareFields, streamID uint32) {
	t.useCount++
	useID := t.newUse()
	t.uses[useID] = use{sequence: t.useCount, streamID: streamID, next: fields.firstUse}
	fields.firstUse = useID
}

// renewUse records a use again, and reports whether the block had one on this stream.
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

// endUseOnStream drops a deferred block's use on a stream, and reports whether the block had one.
// It ignores a use whose deferral number is above lastDeferral.
func (t *useTable) endUseOnStream(fields *rareFields, streamID uint32, lastDeferral uint64) bool {
	for link := &fields.firstUse; *link != 0; link = &t.uses[*link].next {
		useID := *link
		if t.uses[useID].streamID != streamID || t.uses[useID].sequence > lastDeferral {
			continue
		}
		*link = t.uses[useID].next
		t.releaseUse(useID)
		return true
	}
	return false
}

// dropCompleteUses drops a block's uses that are known to be complete.
func (t *useTable) dropCompleteUses(fields *rareFields, streams []stream) {
	for link := &fields.firstUse; *link != 0; {
		useID := *link
		if t.uses[useID].sequence > streams[t.uses[useID].streamID].lastCompleteUse {
			link = &t.uses[useID].next
			continue
		}
		*link = t.uses[useID].next
		t.releaseUse(useID)
	}
}

func (t *useTable) dropUses(fields *rareFields) {
	for fields.firstUse != 0 {
		useID := fields.firstUse
		fields.firstUse = t.uses[useID].next
		t.releaseUse(useID)
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

func (t *useTable) releaseUse(useID uint32) {
	t.uses[useID].next = t.firstUnusedUse
	t.firstUnusedUse = useID
}
