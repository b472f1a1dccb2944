package trace

import (
	"encoding/binary"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"symmem/event"
)

// Log is the contents of a trace.
type Log struct {
	// Rank and Size describe the rank, Process is its process id.
	Rank, Size, Process int
	// Start is when the trace began.
	Start time.Time
	// Records lists the events, oldest first.
	Records []Record
	// Missing is the number of records at the beginning that newer ones have replaced. An event has
	// one or two records.
	Missing uint64
	// Torn is the number of records that were being written when the process ended or the file was
	// read.
	Torn int
	// LostTexts is the number of times that a text was left out because there was no room.
	LostTexts uint64
}

// Record is an event with what a trace adds to it.
type Record struct {
	event.Event
	// Time is when an event of a group happened. Events of pools have no time.
	Time time.Time
	// Call is the text of a collective. Event.Call is nil.
	Call string
	// Digest and Bytes are those of a collective's Call.
	Digest uint64
	Bytes  int64
}

// maxFile bounds the size of a trace, in bytes.
const maxFile = 1 << 37

// Read reads a trace. Errors of the contents wrap ErrFormat.
func Read(r io.Reader) (*Log, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxFile))
	if err != nil {
		return nil, fmt.Errorf("reading a trace: %w", err)
	}
	return Parse(b)
}

// IsTrace reports whether a file that begins with b is a trace. b must have at least 8 bytes.
func IsTrace(b []byte) bool { return strings.HasPrefix(string(b), magic) }

// Parse decodes a trace. It does not modify b. Errors wrap ErrFormat.
func Parse(b []byte) (*Log, error) {
	var records []Record
	l, err := Scan(b, func(r *Record) { records = append(records, *r) })
	if err != nil {
		return nil, err
	}
	l.Records = records
	return l, nil
}

// Scan decodes a trace as Parse does, and calls a function for each event instead of listing it in
// Log.Records. The function must not keep the pointer.
func Scan(b []byte, visit func(*Record)) (*Log, error) {
	if len(b) < headerBytes || !IsTrace(b) {
		return nil, fmt.Errorf("%w: it has no header", ErrFormat)
	}
	get := binary.LittleEndian
	v := get.Uint32(b[offsetVersion:])
	if v != version || get.Uint32(b[offsetRecord:]) != recordBytes {
		return nil, fmt.Errorf("%w: it has version %d, not %d", ErrFormat, v, version)
	}
	capacity, at := get.Uint64(b[offsetCapacity:]), get.Uint64(b[offsetTexts:])
	room, used := get.Uint64(b[offsetRoom:]), get.Uint64(b[offsetUsed:])
	if capacity == 0 || capacity > maxRecords || capacity&(capacity-1) != 0 ||
		at != headerBytes+capacity*recordBytes || room > maxFile || used > room ||
		uint64(len(b)) != at+room {
		return nil, fmt.Errorf("%w: its size does not agree with its header", ErrFormat)
	}
	l := &Log{
		Rank: int(get.Uint32(b[offsetRank:])), Size: int(get.Uint32(b[offsetSize:])),
		Process: int(get.Uint32(b[offsetProcess:])), LostTexts: get.Uint64(b[offsetLost:]),
		Start: time.Unix(0, int64(get.Uint64(b[offsetStart:]))).UTC(),
	}
	texts, err := parseTexts(b[at : at+used])
	if err != nil {
		return nil, err
	}
	d := decoder{log: l, records: b[headerBytes:at], capacity: capacity, texts: texts}
	d.run(get.Uint64(b[offsetNext:]), visit)
	return l, nil
}

func parseTexts(b []byte) ([]string, error) {
	texts := []string{""}
	for len(b) > 0 {
		if len(b) < 2 || len(b) < 2+int(binary.LittleEndian.Uint16(b)) {
			return nil, fmt.Errorf("%w: text %d is cut off", ErrFormat, len(texts))
		}
		n := 2 + int(binary.LittleEndian.Uint16(b))
		texts = append(texts, string(b[2:n]))
		b = b[n:]
	}
	return texts, nil
}

// decoder decodes the records of a file.
type decoder struct {
	log      *Log
	records  []byte
	capacity uint64
	texts    []string
	event    Record
}

// place is an event's place in the order of events.
type place struct{ order, number uint64 }

// run decodes the events of a file in which next records have been written.
func (d *decoder) run(next uint64, visit func(*Record)) {
	for _, p := range d.order(next) {
		head, words, _ := d.load(p.number)
		var rest payload
		if head&moreFlag != 0 {
			_, rest, _ = d.load(p.number + 1)
		}
		d.decode(head, words, rest)
		visit(&d.event)
	}
}

// order returns the places of all complete events in the order in which they were recorded.
func (d *decoder) order(next uint64) []place {
	first := next - min(next, d.capacity)
	d.log.Missing = first
	places := make([]place, 0, next-first)
	for n := first; n < next; n++ {
		head, _, ok := d.load(n)
		switch {
		case !ok || head&moreFlag != 0 && !d.hasSecond(n, next):
			d.log.Torn++
		case head&secondFlag != 0:
			if n == first {
				d.log.Missing++ // newer records have replaced its first record
			}
		case uint8(head>>kindShift) != 0:
			// The order of a record of a batch is the number of claimed records. That of other records is
			// the number of the first.
			order := n + 1 + head>>ageShift
			i := len(places)
			places = append(places, place{})
			for ; i > 0 && places[i-1].order > order; i-- {
				places[i] = places[i-1]
			}
			places[i] = place{order, n}
		}
	}
	return places
}

// load returns the words of record n, counted from 0, or false if it is being written.
func (d *decoder) load(n uint64) (head uint64, words payload, ok bool) {
	raw, get := d.records[n%d.capacity*recordBytes:][:recordBytes], binary.LittleEndian
	head = get.Uint64(raw)
	words = payload{get.Uint64(raw[8:]), get.Uint64(raw[16:]), get.Uint64(raw[24:])}
	return head, words, uint32(head) == uint32(n+1)
}

// hasSecond reports whether the second record of the event of record n is complete.
func (d *decoder) hasSecond(n, next uint64) bool {
	if n+1 >= next {
		return false
	}
	head, _, ok := d.load(n + 1)
	return ok && head&secondFlag != 0
}

// text returns a text by its number.
func (d *decoder) text(n uint64) string {
	if n < uint64(len(d.texts)) {
		return d.texts[n]
	}
	return "?"
}

// source returns the text that names the source of an event.
func (d *decoder) source(head uint64) string {
	if n := head >> sourceShift & (1<<16 - 1); n != lostSource {
		return d.text(n)
	}
	return "?"
}

func (d *decoder) decode(head uint64, first, rest payload) {
	r := &d.event
	*r = Record{Event: event.Event{
		Kind: event.Kind(head >> kindShift), Rank: int32(d.log.Rank), Segment: -1,
		Site: d.text(first.c >> 32),
	}}
	if r.Kind.OfGroup() {
		d.decodeGroup(head, first, rest)
		return
	}
	p := unpackPlacement(first, rest)
	number, group, ok := strings.Cut(d.source(head), "\x00")
	r.Group = group
	if r.Pool, _ = strconv.ParseUint(number, 10, 64); !ok {
		r.Group = "?" // there was no room for the text
	}
	r.Number, r.Stream, r.Segment = p.number, uint32(p.stream), int32(uint32(p.segment))-1
	r.Offset, r.Size, r.Requested = int64(p.offset), int64(p.size), int64(p.size-p.slack)
	r.Name = d.text(rest.c >> 32)
}

func (d *decoder) decodeGroup(head uint64, first, rest payload) {
	r := &d.event
	r.Group, r.Number = d.source(head), first.a&(1<<32-1)|rest.a<<32
	r.Stream, r.Name = uint32(first.a>>32), d.text(rest.a>>32)
	r.Time = d.log.Start.Add(time.Duration(first.b))
	description := d.text(first.c & (1<<32 - 1))
	if r.Kind == event.KindCollective {
		r.Call, r.Digest, r.Bytes = description, rest.b, int64(rest.c)
		return
	}
	r.Operation, r.Text, _ = strings.Cut(description, "\x00")
	r.Value, r.Collectives = int64(rest.b), rest.c
}
