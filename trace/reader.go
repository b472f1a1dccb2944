package trace

import (
	"encoding/binary"
	"fmt"
	"io"
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
	// Missing is the number of events before the first of Records that newer ones have replaced.
	Missing uint64
	// Torn is the number of events that were being written when the process ended or the file was
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
	l.parseRecords(b[headerBytes:at], get.Uint64(b[offsetNext:]), texts)
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

// parseRecords decodes the records of a file in which next events have been written.
func (l *Log) parseRecords(b []byte, next uint64, texts []string) {
	capacity := uint64(len(b) / recordBytes)
	first := next - min(next, capacity)
	l.Missing = first
	for n := first; n < next; n++ {
		raw := b[(n%capacity)*recordBytes:][:recordBytes]
		if get := binary.LittleEndian; get.Uint64(raw) != n+1 || get.Uint16(raw[62:]) != uint16(n+1) {
			l.Torn++
			continue
		}
		l.Records = append(l.Records, l.parseRecord(raw, texts))
	}
}

func (l *Log) parseRecord(b []byte, texts []string) Record {
	get := binary.LittleEndian
	text := func(n uint32) string {
		if int64(n) < int64(len(texts)) {
			return texts[n]
		}
		return "?"
	}
	short := func(n uint16) string {
		if n == lostShort {
			return "?"
		}
		return text(uint32(n))
	}
	r := Record{Event: event.Event{
		Number: get.Uint64(b[8:]), Stream: get.Uint32(b[40:]), Segment: int32(get.Uint32(b[44:])),
		Site: text(get.Uint32(b[52:])), Group: short(get.Uint16(b[56:])),
		Name: short(get.Uint16(b[58:])), Kind: event.Kind(b[60]), Rank: int32(l.Rank),
	}}
	words := [3]int64{int64(get.Uint64(b[16:])), int64(get.Uint64(b[24:])), int64(get.Uint64(b[32:]))}
	if !r.Kind.OfGroup() {
		r.Offset, r.Size, r.Requested = words[0], words[1], words[2]
		r.Pool = uint64(get.Uint32(b[48:]))
		return r
	}
	r.Time = l.Start.Add(time.Duration(words[2]))
	description := text(get.Uint32(b[48:]))
	if r.Kind == event.KindCollective {
		r.Call, r.Digest, r.Bytes = description, uint64(words[0]), words[1]
		return r
	}
	r.Operation, r.Text, _ = strings.Cut(description, "\x00")
	r.Value, r.Collectives = words[0], uint64(words[1])
	return r
}
