package alloc

// stream holds the record of a stream.
type stream struct {
	name   Stream
	number uint32 // see Number
	synced uint64 // its uses up to this number are complete; see useTable.recorded
	first  uint32 // oldest deferred block; side records link it to the others
	last   uint32 // newest deferred block
}

// streamTable assigns numbers to streams and finds their records.
type streamTable struct {
	streams  []stream
	records  map[Stream]uint32 // index in streams
	numbered uint32            // number of streams, except stream 0, that have requested memory
	recent   Stream            // stream of the latest request
	current  uint32            // number of the recent stream's large index
}

// Number returns the number of a stream. Stream 0 has number 0. Other streams are numbered from 1
// in the order of their first Alloc or Reserve. A number therefore depends only on the history of
// requests, not on the stream's name. A stream without requests has number 0. Numbers are not
// reused, so a Core keeps about a hundred bytes for each stream.
func (t *streamTable) Number(name Stream) uint32 {
	n, known := t.records[name]
	if !known {
		return 0
	}
	return t.streams[n].number
}

// addStream creates the record of a stream and returns its index.
func (t *streamTable) addStream(name Stream) uint32 {
	n := uint32(len(t.streams))
	t.records[name] = n
	t.streams = append(t.streams, stream{name: name})
	return n
}

// ensureNumber assigns the next number to a stream that has none.
func (t *streamTable) ensureNumber(n uint32) {
	if s := &t.streams[n]; s.name != 0 && s.number == 0 {
		t.numbered++
		s.number = t.numbered
	}
}

// renumber drops all numbers, so that the next stream gets number 1.
func (t *streamTable) renumber() {
	for i := range t.streams {
		t.streams[i].number = 0
	}
	t.numbered, t.recent, t.current = 0, 0, 0
}

// nameOf returns the name of the stream whose index has the given number.
func (t *streamTable) nameOf(home uint32) Stream { return t.streams[home/2].name }
