package alloc

type stream struct {
	name            Stream
	number          uint32
	lastCompleteUse uint64 // in terms of useTable.useCount
	firstDeferred   uint32
	lastDeferred    uint32
}

type streamTable struct {
	streams        []stream
	streamIDs      map[Stream]uint32
	numberedCount  uint32 // excludes stream 0
	selectedStream Stream
	selectedIndex  uint32
}

// Number returns a stream's number: 0 for Stream 0 and streams without a request, and from 1 in the
// order of their first Alloc or Reserve. Numbers are not reused.
func (t *streamTable) Number(name Stream) uint32 {
	streamID, known := t.streamIDs[name]
	if !known {
		return 0
	}

	return t.streams[streamID].number
}

func (t *streamTable) addStream(name Stream) uint32 {
	streamID := uint32(len(t.streams))
	t.streamIDs[name] = streamID
	t.streams = append(t.streams, stream{name: name})
	return streamID
}

func (t *streamTable) assignNumber(streamID uint32) {
	if s := &t.streams[streamID]; s.name != 0 && s.number == 0 {
		t.numberedCount++
		s.number = t.numberedCount
	}
}

func (t *streamTable) renumber() {
	for i := range t.streams {
		t.streams[i].number = 0
	}

	t.numberedCount, t.selectedStream, t.selectedIndex = 0, 0, 0
}

func (t *streamTable) nameOfIndex(indexID uint32) Stream { return t.streams[indexID/2].name }

func (t *streamTable) numberOfIndex(indexID uint32) uint32 { return t.streams[indexID/2].number }
