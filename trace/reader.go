package trace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"symmem/event"
)

// Log holds the contents of a trace.
type Log struct {
	// Rank wrote the trace, one of Size ranks. Process is its process id.
	Rank, Size, Process int
	// Host is the name of the machine, or empty if it is unknown or redacted.
	Host  string
	Start time.Time
	// Records is sorted, oldest first.
	Records []Record
	// Missing is the number of records that newer ones have replaced. An event has one or two.
	Missing uint64
	// IncompleteRecords were being written when the process exited or the file was read.
	IncompleteRecords int
	// LostTexts counts texts that were omitted because the file was full.
	LostTexts uint64
}

// Record is an event with additional data.
type Record struct {
	event.Event
	// Time is zero for events of pools.
	Time time.Time
	// Call describes a collective. Event.Call is always nil.
	Call string
	// Digest and Bytes are those of the collective's event.Call.
	Digest uint64
	Bytes  int64
}

const maxTextSpaceBytes = 1 << 37

// Read reads a trace. Errors about the contents wrap ErrFormat.
func Read(r io.Reader) (*Log, error) {
	var records []Record
	l, err := Scan(r, func(r *Record) { records = append(records, *r) })
	if err != nil {
		return nil, err
	}
	l.Records = records
	return l, nil
}

// Scan is like Read, but calls visit for each event, and leaves Log.Records empty. visit must not
// keep the pointer.
func Scan(r io.Reader, visit func(*Record)) (*Log, error) {
	begin := make([]byte, headerBytes)
	if _, err := io.ReadFull(r, begin); err != nil || !IsTrace(begin) {
		return nil, readError(err, "it has no header")
	}
	h, err := parseHeader(begin)
	if err != nil {
		return nil, err
	}
	records, err := readPart(r, h.records*recordBytes, (h.capacity-h.records)*recordBytes)
	if err != nil {
		return nil, err
	}
	textSpace, err := readPart(r, h.usedTextBytes, h.textSpaceBytes-h.usedTextBytes)
	if err != nil {
		return nil, err
	}
	if n, _ := io.CopyN(io.Discard, r, 1); n > 0 {
		return nil, readError(nil, "it is longer than its header states")
	}
	texts, err := parseTexts(textSpace)
	if err != nil {
		return nil, err
	}
	d := decoder{log: &h.log, records: records, capacity: h.capacity, texts: texts}
	d.run(h.next, visit)
	return d.log, nil
}

func readError(err error, text string) error {
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("reading a trace: %w", err)
	}
	return fmt.Errorf("%w: %s", ErrFormat, text)
}

// readPart returns size bytes and discards skip bytes after them. It allocates memory in steps,
// because size may be wrong.
func readPart(r io.Reader, size, skip uint64) ([]byte, error) {
	const step = 64 << 20
	var part []byte
	for uint64(len(part)) < size {
		n := len(part)
		part = slices.Grow(part, int(min(size-uint64(n), step+uint64(n))))
		part = part[:n+int(min(size-uint64(n), step+uint64(n)))]
		if _, err := io.ReadFull(r, part[n:]); err != nil {
			return nil, readError(err, "it is cut off")
		}
	}
	if _, err := io.CopyN(io.Discard, r, int64(skip)); err != nil {
		return nil, readError(err, "it is cut off")
	}
	return part, nil
}

// IsTrace reports whether a file that begins with b is a trace. b must have at least 8 bytes.
func IsTrace(b []byte) bool { return strings.HasPrefix(string(b), magic) }

// Parse decodes a trace. It does not modify b. Errors wrap ErrFormat.
func Parse(b []byte) (*Log, error) { return Read(bytes.NewReader(b)) }

type header struct {
	log                           Log
	capacity, next, records       uint64 // records is the number in use
	textSpaceBytes, usedTextBytes uint64
}

func parseHeader(b []byte) (*header, error) {
	get := binary.LittleEndian
	v := get.Uint32(b[offsetVersion:])
	if v != version || get.Uint32(b[offsetRecord:]) != recordBytes {
		return nil, fmt.Errorf("%w: its format has version %d, but only version %d can be read",
			ErrFormat, v, version)
	}
	h := &header{
		capacity: get.Uint64(b[offsetCapacity:]), next: get.Uint64(b[offsetNext:]),
		textSpaceBytes: get.Uint64(b[offsetRoom:]), usedTextBytes: get.Uint64(b[offsetUsed:]),
		log: Log{
			Rank: int(get.Uint32(b[offsetRank:])), Size: int(get.Uint32(b[offsetSize:])),
			Process: int(get.Uint32(b[offsetProcess:])), LostTexts: get.Uint64(b[offsetLost:]),
			Host:  string(bytes.TrimRight(b[offsetHost:offsetHost+maxHostBytes], "\x00")),
			Start: time.Unix(0, int64(get.Uint64(b[offsetStart:]))).UTC(),
		},
	}
	if h.capacity == 0 || h.capacity > maxRecords || h.capacity&(h.capacity-1) != 0 ||
		get.Uint64(b[offsetTexts:]) != headerBytes+h.capacity*recordBytes ||
		h.textSpaceBytes > maxTextSpaceBytes || h.usedTextBytes > h.textSpaceBytes {
		return nil, fmt.Errorf("%w: its header is damaged", ErrFormat)
	}
	h.records = min(h.next, h.capacity)
	return h, nil
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

type decoder struct {
	log      *Log
	records  []byte
	capacity uint64
	texts    []string
	event    Record
	// pool and group belong to the source latest, which often repeats.
	latest uint64
	pool   uint64
	group  string
}

// place is an event's first record and its key for sorting.
type place struct{ order, number uint64 }

// run calls visit for each event. next records have been written so far.
func (d *decoder) run(next uint64, visit func(*Record)) {
	for _, p := range d.order(next) {
		head, words, _ := d.load(p.number)
		var rest payload
		if head&hasSecondFlag != 0 {
			_, rest, _ = d.load(p.number + 1)
		}
		d.decode(head, words, rest)
		visit(&d.event)
	}
}

// order sorts the complete events as they were recorded.
func (d *decoder) order(next uint64) []place {
	first := next - min(next, d.capacity)
	d.log.Missing = first
	places := make([]place, 0, next-first)
	for n := first; n < next; n++ {
		head, _, ok := d.load(n)
		switch {
		case !ok || head&hasSecondFlag != 0 && !d.hasSecond(n, next):
			d.log.IncompleteRecords++
		case head&isSecondFlag != 0:
			if n == first {
				d.log.Missing++ // the event's first record has been replaced
			}
		case uint8(head>>kindShift) != 0:
			// order counts the records that had been claimed when this one was written.
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

// load counts records from 0. ok is false if the record is incomplete.
func (d *decoder) load(n uint64) (head uint64, words payload, ok bool) {
	raw, get := d.records[n%d.capacity*recordBytes:][:recordBytes], binary.LittleEndian
	head = get.Uint64(raw)
	words = payload{get.Uint64(raw[8:]), get.Uint64(raw[16:]), get.Uint64(raw[24:])}
	return head, words, uint32(head) == uint32(n+1)
}

func (d *decoder) hasSecond(n, next uint64) bool {
	if n+1 >= next {
		return false
	}
	head, _, ok := d.load(n + 1)
	return ok && head&isSecondFlag != 0
}

func (d *decoder) text(n uint64) string {
	if n < uint64(len(d.texts)) {
		return d.texts[n]
	}
	return "?"
}

func (d *decoder) source(head uint64) string {
	if n := head >> sourceShift & mask16; n != omittedSourceNumber {
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
	if r.Kind.IsGroupEvent() {
		d.decodeGroup(head, first, rest)
		return
	}
	p := unpackPlacement(first, rest)
	r.Pool, r.Group = d.poolOf(head)
	r.Number, r.Stream, r.Segment = p.number, uint32(p.stream), int32(uint32(p.segment))-1
	r.Offset, r.Size, r.Requested = int64(p.offset), int64(p.size), int64(p.size-p.unrequested)
	r.Name = d.text(rest.c >> 32)
}

// poolOf returns the pool and its domain's group.
func (d *decoder) poolOf(head uint64) (pool uint64, group string) {
	if source := head>>sourceShift&mask16 + 1; source != d.latest {
		number, group, ok := strings.Cut(d.source(head), "\x00")
		if !ok {
			group = "?" // the text did not fit
		}
		d.latest, d.group = source, group
		d.pool, _ = strconv.ParseUint(number, 10, 64)
	}
	return d.pool, d.group
}

func (d *decoder) decodeGroup(head uint64, first, rest payload) {
	r := &d.event
	r.Group, r.Number = d.source(head), first.a&mask32|rest.a<<32
	r.Stream, r.Name = uint32(first.a>>32), d.text(rest.a>>32)
	r.Time = d.log.Start.Add(time.Duration(first.b))
	description := d.text(first.c & mask32)
	if r.Kind == event.KindCollective {
		r.Call, r.Digest, r.Bytes = description, rest.b, int64(rest.c)
		return
	}
	r.Operation, r.Text, _ = strings.Cut(description, "\x00")
	r.Value, r.Collectives = int64(rest.b), rest.c
}
