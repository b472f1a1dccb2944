package alloc

// use records that a stream other than the owner uses a block.
type use struct {
	// seq is the deferral number of a deferred block. For other blocks, it is the value of
	// useTable.recorded when the use was last recorded.
	seq    uint64
	stream uint32 // index of the stream's record
	next   uint32 // next use of the block, or next spare record
}

type useTable struct {
	uses     []use // index 0 means none
	spareUse uint32
	recorded uint64 // number of uses recorded so far
}

func (t *useTable) addUse(e *extra, stream uint32) {
	t.recorded++
	u := t.newUse()
	t.uses[u] = use{seq: t.recorded, stream: stream, next: e.firstUse}
	e.firstUse = u
}

// renewUse records a use again, and reports whether the block had one on this stream.
func (t *useTable) renewUse(e *extra, stream uint32) bool {
	for u := e.firstUse; u != 0; u = t.uses[u].next {
		if t.uses[u].stream == stream {
			t.recorded++
			t.uses[u].seq = t.recorded
			return true
		}
	}
	return false
}

// endUse drops a deferred block's use on a stream, and reports whether the block had
// such a use. It ignores
// uses whose deferral number is above last.
func (t *useTable) endUse(e *extra, stream uint32, last uint64) bool {
	for link := &e.firstUse; *link != 0; link = &t.uses[*link].next {
		u := *link
		if t.uses[u].stream != stream || t.uses[u].seq > last {
			continue
		}
		*link = t.uses[u].next
		t.dropUse(u)
		return true
	}
	return false
}

// dropCompleteUses drops a block's uses that are known to be complete.
func (t *useTable) dropCompleteUses(e *extra, streams []stream) {
	for link := &e.firstUse; *link != 0; {
		u := *link
		if t.uses[u].seq > streams[t.uses[u].stream].completeUse {
			link = &t.uses[u].next
			continue
		}
		*link = t.uses[u].next
		t.dropUse(u)
	}
}

func (t *useTable) dropUses(e *extra) {
	for e.firstUse != 0 {
		u := e.firstUse
		e.firstUse = t.uses[u].next
		t.dropUse(u)
	}
}

func (t *useTable) newUse() uint32 {
	if u := t.spareUse; u != 0 {
		t.spareUse = t.uses[u].next
		return u
	}
	t.uses = append(t.uses, use{})
	return uint32(len(t.uses) - 1)
}

func (t *useTable) dropUse(u uint32) {
	t.uses[u].next = t.spareUse
	t.spareUse = u
}
