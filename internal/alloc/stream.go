package alloc

type stream struct {
	name   Stream
	number uint32 // see Number
	synced uint64 // latest use known to be complete; see useTable.recorded
	first  uint32 // oldest deferred block, linked to the others by side records
	last   uint32 // newest deferred block
}

type streamTable struct {
	streams  []stream
	records  map[Stream]uint32 // index of each stream in streams
	numbered uint32            // number of streams other than 0 that have requested memory
	recent   Stream            // stream of the latest request
	current  uint32            // number of the index for large requests of the stream recent
}

// Number returns a stream's number. Stream 0 and streams that have made no request have the
// number 0. All others are numbered from 1 in the order of their first Alloc or Reserve, so that
// a number depends only on the history of requests and not on the stream's name. Numbers are not
// reused, and a Core keeps about a hundred bytes for each stream.
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
		t.numbered++
		s.number = t.numbered
	}
}

// renumber drops all numbers, so that numbering restarts at 1.
func (t *streamTable) renumber() {
	for i := range t.streams {
		t.streams[i].number = 0
	}
	t.numbered, t.recent, t.current = 0, 0, 0
}

func (t *streamTable) nameOf(home uint32) Stream { return t.streams[home/2].name }
