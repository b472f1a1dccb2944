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
	// Missing is the number of records that newer ones have replaced. An event has one or two
	// records.
	Missing uint64
	// IncompleteRecords counts the records that were being written when the process exited or the
	// file was read.
	IncompleteRecords int
	// LostTexts counts texts that were lost because the file was full.
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

// maxTextSpaceBytes is more than a Writer ever uses. A header with more is damaged.
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
	_, readErr := io.ReadFull(r, begin)
	if readErr != nil || !IsTrace(begin) {
		return nil, readError(readErr, "it has no header")
	}

	h, err := parseHeader(begin)
	if err != nil {
		return nil, err
	}

	unusedRecords := h.capacity - h.records
	records, err := readPart(r, h.records*recordBytes, unusedRecords*recordBytes)
	if err != nil {
		return nil, err
	}

	textSpace, err := readPart(r, h.usedTextBytes, h.textSpaceBytes-h.usedTextBytes)
	if err != nil {
		return nil, err
	}

	extraBytes, _ := io.CopyN(io.Discard, r, 1) // io.EOF is expected
	if extraBytes > 0 {
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

// readError returns an error about an incomplete read. If err is nil or the end of the file, it is
// an ErrFormat with the text.
func readError(err error, text string) error {
	isEnd := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	if err != nil && !isEnd {
		return fmt.Errorf("reading a trace: %w", err)
	}

	return fmt.Errorf("%w: %s", ErrFormat, text)
}

// readPart returns size bytes and discards skip bytes after them. It allocates memory in steps,
// because size may be wrong: each step at most doubles the memory and adds 64 MiB.
func readPart(r io.Reader, size, skip uint64) ([]byte, error) {
	const minStep = 64 << 20
	var part []byte
	for uint64(len(part)) < size {
		oldLength := len(part)
		step := int(min(size-uint64(oldLength), minStep+uint64(oldLength)))
		part = slices.Grow(part, step)
		part = part[:oldLength+step]
		if _, err := io.ReadFull(r, part[oldLength:]); err != nil {
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

// header is the decoded header of a trace. The file has space for capacity records, which are
// reused in turn. next counts the records written so far, and records those that the file contains.
type header struct {
	log                           Log
	capacity, next, records       uint64
	textSpaceBytes, usedTextBytes uint64
}

// parseHeader decodes the first headerBytes bytes of a trace.
func parseHeader(b []byte) (*header, error) {
	get := binary.LittleEndian
	fileVersion := get.Uint32(b[offsetVersion:])
	if fileVersion != version || get.Uint32(b[offsetRecordBytes:]) != recordBytes {
		return nil, fmt.Errorf("%w: its format has version %d, but only version %d can be read",
			ErrFormat, fileVersion, version)
	}

	h := &header{
		capacity: get.Uint64(b[offsetCapacity:]), next: get.Uint64(b[offsetClaimedCount:]),
		textSpaceBytes: get.Uint64(b[offsetTextSpaceBytes:]),
		usedTextBytes:  get.Uint64(b[offsetUsedTextBytes:]),
		log: Log{
			Rank: int(get.Uint32(b[offsetRank:])), Size: int(get.Uint32(b[offsetRankCount:])),
			Process: int(get.Uint32(b[offsetProcess:])), LostTexts: get.Uint64(b[offsetLostTexts:]),
			Host:  string(bytes.TrimRight(b[offsetHost:offsetHost+maxHostBytes], "\x00")),
			Start: time.Unix(0, int64(get.Uint64(b[offsetStart:]))).UTC(),
		},
	}
	isPowerOfTwo := h.capacity != 0 && h.capacity&(h.capacity-1) == 0
	isCapacityValid := isPowerOfTwo && h.capacity <= maxRecords // no product below overflows
	textsOffset := get.Uint64(b[offsetTextSpaceBegin:])
	areRecordsValid := isCapacityValid && textsOffset == headerBytes+h.capacity*recordBytes
	areTextsValid := h.textSpaceBytes <= maxTextSpaceBytes && h.usedTextBytes <= h.textSpaceBytes
	if !areRecordsValid || !areTextsValid {
		return nil, fmt.Errorf("%w: its header is damaged", ErrFormat)
	}

	h.records = min(h.next, h.capacity)
	return h, nil
}

// parseTexts returns the texts by number. Text 0 is empty and not in b.
func parseTexts(b []byte) ([]string, error) {
	const lengthBytes = 2 // a text is preceded by its length
	texts := []string{""}
	for len(b) > 0 {
		if len(b) < lengthBytes {
			return nil, fmt.Errorf("%w: text %d is cut off", ErrFormat, len(texts))
		}

		end := lengthBytes + int(binary.LittleEndian.Uint16(b))
		if len(b) < end {
			return nil, fmt.Errorf("%w: text %d is cut off", ErrFormat, len(texts))
		}

		texts = append(texts, string(b[lengthBytes:end]))
		b = b[end:]
	}

	return texts, nil
}

// decoder decodes the records of a trace. layout.go describes their format.
type decoder struct {
	log      *Log
	records  []byte
	capacity uint64
	texts    []string // by number
	event    Record   // the latest, reused
	// latest is the number of the latest source (of events) plus 1, or 0 if there is none. pool and
	// group describe this source. They are kept, because the source often repeats.
	latest uint64
	pool   uint64
	group  string
}

// place is where an event's first record is, and the event's key for sorting.
type place struct {
	order  uint64 // the number of records that had been claimed when the record was written
	number uint64 // of the record, from 0
}

// run calls visit for each event. next records have been written so far.
func (d *decoder) run(next uint64, visit func(*Record)) {
	for _, p := range d.sortedPlaces(next) {
		head, first, _ := d.load(p.number)
		var rest payload
		if head&hasSecondFlag != 0 {
			_, rest, _ = d.load(p.number + 1)
		}

		d.decode(head, first, rest)
		visit(&d.event)
	}
}

// sortedPlaces lists the places of the complete events in the order in which they were recorded. It
// also counts missing and incomplete records in the log.
func (d *decoder) sortedPlaces(next uint64) []place {
	first := next - min(next, d.capacity)
	d.log.Missing = first
	places := make([]place, 0, next-first)
	for n := first; n < next; n++ {
		head, _, isComplete := d.load(n)
		isSecond := head&isSecondFlag != 0
		hasKind := uint8(head>>kindShift) != 0 // otherwise, a Source has claimed but not used it
		lacksSecond := head&hasSecondFlag != 0 && !d.hasSecond(n, next)
		switch {
		case !isComplete || lacksSecond:
			d.log.IncompleteRecords++
		case isSecond && n == first:
			d.log.Missing++ // the event's first record has been replaced
		case !isSecond && hasKind:
			age := head >> ageShift
			places = insertSorted(places, place{order: n + 1 + age, number: n})
		}
	}

	return places
}

// insertSorted inserts p behind the places with the same or a smaller order. It is fast, because
// few records are written out of order.
func insertSorted(places []place, p place) []place {
	i := len(places)
	places = append(places, p)
	for i > 0 && places[i-1].order > p.order {
		places[i] = places[i-1]
		i--
	}

	places[i] = p
	return places
}

// load returns record n, counted from 0. isComplete is false if the record was being written.
func (d *decoder) load(n uint64) (head uint64, p payload, isComplete bool) {
	get := binary.LittleEndian
	raw := d.records[n%d.capacity*recordBytes:][:recordBytes]
	head = get.Uint64(raw)
	p = payload{a: get.Uint64(raw[8:]), b: get.Uint64(raw[16:]), c: get.Uint64(raw[24:])}
	writtenNumber := uint32(head) // counted from 1, and cut to 32 bits
	return head, p, writtenNumber == uint32(n+1)
}

// hasSecond reports whether the record after n is a complete second record.
func (d *decoder) hasSecond(n, next uint64) bool {
	if n+1 >= next {
		return false
	}

	head, _, isComplete := d.load(n + 1)
	return isComplete && head&isSecondFlag != 0
}

// text returns the text with a number, or "?" if the text was lost.
func (d *decoder) text(n uint64) string {
	if n < uint64(len(d.texts)) {
		return d.texts[n]
	}

	return "?"
}

// source returns the text that names the pool or group of a record.
func (d *decoder) source(head uint64) string {
	number := head >> sourceShift & mask16
	if number == unknownSourceNumber {
		return "?"
	}

	return d.text(number)
}

// decode decodes an event into d.event. rest is zero if the event has no second record.
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
	r.Number = p.number
	r.Stream = uint32(p.stream)
	r.Segment = int32(uint32(p.segment)) - 1
	r.Offset = int64(p.offset)
	r.Size = int64(p.size)
	r.Requested = int64(p.size - p.unrequested)
	r.Name = d.text(rest.c >> 32)
}

// poolOf returns the pool of a record, and the id of its domain's group. The source's text contains
// both.
func (d *decoder) poolOf(head uint64) (pool uint64, group string) {
	source := head>>sourceShift&mask16 + 1
	if source != d.latest {
		number, groupID, isWhole := strings.Cut(d.source(head), "\x00")
		if !isWhole {
			groupID = "?" // the text did not fit into the file
		}

		d.latest = source
		d.group = groupID
		d.pool, _ = strconv.ParseUint(number, 10, 64) // 0 after an error
	}

	return d.pool, d.group
}

// decodeGroup is decode for events of a group.
func (d *decoder) decodeGroup(head uint64, first, rest payload) {
	r := &d.event
	r.Group = d.source(head)
	r.Number = first.a&mask32 | rest.a<<32
	r.Stream = uint32(first.a >> 32)
	r.Name = d.text(rest.a >> 32)
	r.Time = d.log.Start.Add(time.Duration(first.b))
	description := d.text(first.c & mask32)
	if r.Kind == event.KindCollective {
		r.Call = description
		r.Digest = rest.b
		r.Bytes = int64(rest.c)
		return
	}

	r.Operation, r.Text, _ = strings.Cut(description, "\x00")
	r.Value = int64(rest.b)
	r.Collectives = rest.c
}
