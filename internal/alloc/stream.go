package alloc

type stream struct {
	name          Stream
	number        uint32
	completeUse   uint64 // latest use known to be complete; see useTable.recorded
	firstDeferred uint32 // oldest deferred block
	lastDeferred  uint32
}

type streamTable struct {
	streams         []stream
	records         map[Stream]uint32
	numberedStreams uint32 // number of streams other than 0 that have requested memory
	recentStream    Stream
	recentIndex     uint32 // index for large requests of recentStream
}

// Number returns a stream's number. Stream 0 and streams that have made no request have the number
// 0. All others are numbered from 1 in the order of their first Alloc or Reserve. Numbers are not
// reused.
func (t *streamTable) Number(name Stream) uint32 {
	n, known := t.records[name]
	if !known {
		return 0
	}
	return t.streams[n].number
}

func (t *streamTable) addStream(name Stream) uint32 {
	n := uint32(len(t.streams))
	t.records[name] = n
	t.streams = append(t.streams, stream{name: name})
	return n
}

func (t *streamTable) ensureNumber(n uint32) {
	if s := &t.streams[n]; s.name != 0 && s.number == 0 {
		t.numberedStreams++
		s.number = t.numberedStreams
	}
}

func (t *streamTable) renumber() {
	for i := range t.streams {
		t.streams[i].number = 0
	}
	t.numberedStreams, t.recentStream, t.recentIndex = 0, 0, 0
}

func (t *streamTable) nameOf(indexID uint32) Stream { return t.streams[indexID/2].name }
