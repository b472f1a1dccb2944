package alloc

// use records that a stream other than the owner uses a block.
type use struct {
	// seq is the deferral number (StreamPoint.Deferral) of a deferred block. For other blocks, it
	// is the value of useTable.useCount when the use was last recorded.
	seq    uint64
	stream uint32 // index in streamTable.streams
	next   uint32 // next use of the block, or next unused record
}

type useTable struct {
	uses           []use // index 0 means none
	firstUnusedUse uint32
	useCount       uint64 // number of uses recorded so far
}

func (t *useTable) addUse(e *rareFields, stream uint32) {
	t.useCount++
	u := t.newUse()
	t.uses[u] = use{seq: t.useCount, stream: stream, next: e.firstUse}
	e.firstUse = u
}

// renewUse records a use again, and reports whether the block had one on this stream.
func (t *useTable) renewUse(e *rareFields, stream uint32) bool {
	for u := e.firstUse; u != 0; u = t.uses[u].next {
		if t.uses[u].stream == stream {
			t.useCount++
			t.uses[u].seq = t.useCount
			return true
		}
	}
	return false
}

// endUseOnStream drops a deferred block's use on a stream, and reports whether the block had one.
// It ignores a use whose deferral number is above lastDeferral.
func (t *useTable) endUseOnStream(e *rareFields, stream uint32, lastDeferral uint64) bool {
	for link := &e.firstUse; *link != 0; link = &t.uses[*link].next {
		u := *link
		if t.uses[u].stream != stream || t.uses[u].seq > lastDeferral {
			continue
		}
		*link = t.uses[u].next
		t.releaseUse(u)
		return true
	}
	return false
}

// dropCompleteUses drops a block's uses whose work is known to be complete.
func (t *useTable) dropCompleteUses(e *rareFields, streams []stream) {
	for link := &e.firstUse; *link != 0; {
		u := *link
		if t.uses[u].seq > streams[t.uses[u].stream].lastCompleteUse {
			link = &t.uses[u].next
			continue
		}
		*link = t.uses[u].next
		t.releaseUse(u)
	}
}

func (t *useTable) dropUses(e *rareFields) {
	for e.firstUse != 0 {
		u := e.firstUse
		e.firstUse = t.uses[u].next
		t.releaseUse(u)
	}
}

func (t *useTable) newUse() uint32 {
	if u := t.firstUnusedUse; u != 0 {
		t.firstUnusedUse = t.uses[u].next
		return u
	}
	t.uses = append(t.uses, use{})
	return uint32(len(t.uses) - 1)
}

func (t *useTable) releaseUse(u uint32) {
	t.uses[u].next = t.firstUnusedUse
	t.firstUnusedUse = u
}
