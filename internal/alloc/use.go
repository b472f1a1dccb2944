package alloc

// use records a block's use on a stream other than its own.
type use struct {
	// seq is the block's deferral number if the block is deferred. If not, it is the value of
	// useTable.recorded when the use was last recorded or renewed.
	seq    uint64
	stream uint32 // record index of the stream
	next   uint32 // next use of the block, or next spare record
}

type useTable struct {
	uses     []use  // by number; index 0 is reserved and means none
	spareUse uint32 // first spare record
	recorded uint64 // number of uses recorded or renewed so far
}

func (t *useTable) addUse(s *side, stream uint32) {
	t.recorded++
	u := t.grabUse()
	t.uses[u] = use{seq: t.recorded, stream: stream, next: s.uses}
	s.uses = u
}

// repeatUse renews a block's use on a stream, and reports whether the block had one.
func (t *useTable) repeatUse(s *side, stream uint32) bool {
	for u := s.uses; u != 0; u = t.uses[u].next {
		if t.uses[u].stream == stream {
			t.recorded++
			t.uses[u].seq = t.recorded
			return true
		}
	}
	return false
}

// endUse drops a deferred block's use on a stream, and reports whether the block had such a use.
// It ignores uses whose deferral number is above last.
func (t *useTable) endUse(s *side, stream uint32, last uint64) bool {
	for link := &s.uses; *link != 0; link = &t.uses[*link].next {
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

// forgetSynced drops those uses of a block that are known to be complete; see stream.synced.
func (t *useTable) forgetSynced(s *side, streams []stream) {
	for link := &s.uses; *link != 0; {
		u := *link
		if t.uses[u].seq > streams[t.uses[u].stream].synced {
			link = &t.uses[u].next
			continue
		}
		*link = t.uses[u].next
		t.dropUse(u)
	}
}

func (t *useTable) forgetUses(s *side) {
	for s.uses != 0 {
		u := s.uses
		s.uses = t.uses[u].next
		t.dropUse(u)
	}
}

func (t *useTable) grabUse() uint32 {
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
