package alloc

// use records that a block is used on a stream other than its own.
type use struct {
	// call is the value of useTable.recorded at the time when the use was recorded or renewed,
	// or the deferral number if the block is deferred.
	call   uint64
	stream uint32 // record index of the stream
	next   uint32 // next use of the block, or next spare record
}

// useTable holds the uses of all blocks, as a list for each block.
type useTable struct {
	uses     []use  // by number; number 0 is no use
	spareUse uint32 // first spare record
	recorded uint64 // number of uses recorded or renewed so far
}

// addUse adds a use on a stream to a block.
func (t *useTable) addUse(s *side, stream uint32) {
	t.recorded++
	u := t.grabUse()
	t.uses[u] = use{call: t.recorded, stream: stream, next: s.uses}
	s.uses = u
}

// repeatUse renews the use of a block on a stream, and reports whether there was such a use.
func (t *useTable) repeatUse(s *side, stream uint32) bool {
	for u := s.uses; u != 0; u = t.uses[u].next {
		if t.uses[u].stream == stream {
			t.recorded++
			t.uses[u].call = t.recorded
			return true
		}
	}
	return false
}

// endUse drops the use of a deferred block on a stream, and reports whether there was such a use.
// It ignores blocks with a deferral number above last.
func (t *useTable) endUse(s *side, stream uint32, last uint64) bool {
	for link := &s.uses; *link != 0; link = &t.uses[*link].next {
		u := *link
		if t.uses[u].stream != stream || t.uses[u].call > last {
			continue
		}
		*link = t.uses[u].next
		t.dropUse(u)
		return true
	}
	return false
}

// forgetSynced drops the uses of a block that streams have completed since; see stream.synced.
func (t *useTable) forgetSynced(s *side, streams []stream) {
	for link := &s.uses; *link != 0; {
		u := *link
		if t.uses[u].call > streams[t.uses[u].stream].synced {
			link = &t.uses[u].next
			continue
		}
		*link = t.uses[u].next
		t.dropUse(u)
	}
}

// forgetUses drops all uses of a block.
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
