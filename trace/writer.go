package trace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"symmem/event"
	"symmem/internal/sys"
)

// Options configures Create.
type Options struct {
	// Rank and Size describe the rank.
	Rank, Size int
	// Records is the number of events that the file keeps. It is rounded up to a power of two. 0
	// selects 1<<20, for which the file has 68 MiB.
	Records int
}

const (
	defaultRecords = 1 << 20
	maxRecords     = 1 << 30
	// textShare is the number of bytes of a record for each byte of texts.
	textShare = 16
	minTexts  = 64 << 10
)

// FileName returns the name of a rank's trace in a folder.
func FileName(rank int) string { return fmt.Sprintf("rank%d.trace", rank) }

// Writer writes a trace. Its methods are safe for concurrent use. It needs no Close: the file is
// complete after each event, and is unmapped when neither the Writer nor its Sources are in use.
type Writer struct {
	bytes   []byte
	records []record
	mask    uint64
	next    *atomic.Uint64
	start   time.Time

	mu      sync.Mutex
	numbers map[string]uint32 // guarded by mu
	used    uint64            // guarded by mu
	room    []byte
}

// Create creates the trace of a rank in a folder, which it creates if necessary. A trace that is
// already there gets the suffix ".old". If this process has created that trace as a rank of another
// world, the new file has another name instead. Files have mode 0600. Neither the folder nor a file
// may be a symbolic link. A disk without room for the whole file is an error.
func Create(folder string, o Options) (*Writer, error) {
	if o.Records < 0 || o.Records > maxRecords || o.Rank < 0 || o.Size < 1 {
		return nil, fmt.Errorf("creating a trace of rank %d of %d with %d records: out of range",
			o.Rank, o.Size, o.Records)
	}
	path, err := claim(folder, o.Rank)
	if err != nil {
		return nil, err
	}
	w, err := replace(path, o)
	if err != nil {
		claimed.Delete(path)
	}
	return w, err
}

// claimed is the set of paths of the traces that this process has created. It lets another world of
// the process choose another path.
var claimed sync.Map

// claim creates the folder of traces, and returns the path of a new trace in it.
func claim(folder string, rank int) (string, error) {
	folder, err := filepath.Abs(folder)
	if err == nil {
		err = os.MkdirAll(folder, 0o700)
	}
	if err != nil {
		return "", fmt.Errorf("creating the folder of traces: %w", err)
	}
	if info, err := os.Lstat(folder); err != nil || !info.IsDir() {
		return "", errors.Join(err, fmt.Errorf("the folder of traces, %s, is not a directory", folder))
	}
	path := filepath.Join(folder, FileName(rank))
	for world := 2; ; world++ {
		if _, exists := claimed.LoadOrStore(path, true); !exists {
			return path, nil
		}
		path = filepath.Join(folder, fmt.Sprintf("world%d-%s", world, FileName(rank)))
	}
}

// replace renames the trace of an earlier process, if there is one, and creates a new one.
func replace(path string, o Options) (*Writer, error) {
	if err := os.Rename(path, path+".old"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("keeping the older trace: %w", err)
	}
	records := 1
	for records < o.Records || o.Records == 0 && records < defaultRecords {
		records *= 2
	}
	return create(path, o, uint64(records))
}

func create(path string, o Options, records uint64) (*Writer, error) {
	texts := max(records*recordBytes/textShare, minTexts)
	bytes := int64(headerBytes + records*recordBytes + texts)
	f, err := sys.CreateFile(path, bytes)
	if err != nil {
		return nil, fmt.Errorf("creating a trace: %w", err)
	}
	m, err := sys.Map(f, 0, bytes)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, errors.Join(fmt.Errorf("mapping a trace: %w", err), os.Remove(path))
	}
	w := &Writer{
		bytes: unsafe.Slice((*byte)(m.Base()), bytes), mask: records - 1, start: time.Now(),
		numbers: map[string]uint32{},
	}
	runtime.AddCleanup(w, func(m *sys.Mapping) { _ = m.Close() }, m)
	w.room = w.bytes[headerBytes+records*recordBytes:]
	w.records = unsafe.Slice((*record)(unsafe.Pointer(&w.bytes[headerBytes])), records)
	w.next = (*atomic.Uint64)(unsafe.Pointer(&w.bytes[offsetNext]))
	w.writeHeader(o, records, texts)
	return w, nil
}

// writeHeader writes the constant fields, the magic last.
func (w *Writer) writeHeader(o Options, records, texts uint64) {
	put := binary.LittleEndian
	put.PutUint32(w.bytes[offsetVersion:], version)
	put.PutUint32(w.bytes[offsetRecord:], recordBytes)
	put.PutUint32(w.bytes[offsetRank:], uint32(o.Rank))
	put.PutUint32(w.bytes[offsetSize:], uint32(o.Size))
	put.PutUint32(w.bytes[offsetProcess:], uint32(os.Getpid()))
	put.PutUint64(w.bytes[offsetCapacity:], records)
	put.PutUint64(w.bytes[offsetTexts:], headerBytes+records*recordBytes)
	put.PutUint64(w.bytes[offsetRoom:], texts)
	put.PutUint64(w.bytes[offsetStart:], uint64(w.start.UnixNano()))
	copy(w.bytes, magic)
}

// text returns the number of a text, from 1. The empty text has number 0.
func (w *Writer) text(s string) uint32 {
	if s == "" {
		return 0
	}
	s = s[:min(len(s), maxText)]
	w.mu.Lock()
	defer w.mu.Unlock()
	if n, ok := w.numbers[s]; ok {
		return n
	}
	if w.used+2+uint64(len(s)) > uint64(len(w.room)) {
		lost := binary.LittleEndian.Uint64(w.bytes[offsetLost:])
		binary.LittleEndian.PutUint64(w.bytes[offsetLost:], lost+1)
		return lostText
	}
	n := uint32(len(w.numbers)) + 1
	w.numbers[strings.Clone(s)] = n // s may be part of a long text
	at := w.room[w.used:]
	binary.LittleEndian.PutUint16(at, uint16(len(s)))
	copy(at[2:], s)
	w.used += 2 + uint64(len(s))
	binary.LittleEndian.PutUint64(w.bytes[offsetUsed:], w.used)
	return n
}

// maxText bounds a text, in bytes.
const maxText = 4096

// short returns the number of a text, or lostShort if the number needs more than 16 bits.
func (w *Writer) short(s string) uint16 { return uint16(min(w.text(s), lostShort)) }

// Source writes the events of one pool or one group. Its owner serialises calls.
type Source struct {
	w          *Writer
	group      string // the group of the latest event
	groupText  uint16
	groupKnown bool
	site       string // the site of the latest event
	siteText   uint32
	call       *event.Call // the call of the latest collective
	callText   uint32
	calls      map[*event.Call]uint32
}

// NewSource returns a Source of the trace.
func (w *Writer) NewSource() *Source { return &Source{w: w, calls: map[*event.Call]uint32{}} }

// Record adds an event to the trace. It writes the record's stamp first and its end last: if the
// process is killed in between, they differ.
func (s *Source) Record(e *event.Event) {
	if !identical(e.Group, s.group) || !s.groupKnown {
		s.group, s.groupText, s.groupKnown = e.Group, s.w.short(e.Group), true
	}
	if !identical(e.Site, s.site) {
		s.site, s.siteText = e.Site, s.w.text(e.Site)
	}
	if e.Kind.OfGroup() {
		s.recordOfGroup(e)
		return
	}
	name := uint16(0)
	if e.Name != "" {
		name = s.w.short(e.Name)
	}
	n := s.w.next.Add(1)
	r := &s.w.records[(n-1)&s.w.mask]
	r.stamp = n
	r.number, r.offset, r.size, r.requested = e.Number, e.Offset, e.Size, e.Requested
	r.stream, r.segment, r.pool, r.site = e.Stream, e.Segment, uint32(e.Pool), s.siteText
	r.group, r.name, r.kind = s.groupText, name, uint8(e.Kind)
	r.end = uint16(n)
	runtime.KeepAlive(s) // and with it the mapping
}

// identical reports whether two strings are the same memory. It is faster than a comparison.
func identical(a, b string) bool {
	return len(a) == len(b) && unsafe.StringData(a) == unsafe.StringData(b)
}

// recordOfGroup records an event of a group, with its time.
func (s *Source) recordOfGroup(e *event.Event) {
	var text uint32
	var name uint16
	value, count := e.Value, int64(e.Collectives)
	if e.Kind == event.KindCollective {
		if e.Call == nil {
			return
		}
		text, value, count = s.textOf(e.Call), int64(e.Call.Digest), e.Call.Bytes
	} else {
		text, name = s.w.text(e.Operation+"\x00"+e.Text), s.w.short(e.Name)
	}
	elapsed := int64(time.Since(s.w.start))
	n := s.w.next.Add(1)
	r := &s.w.records[(n-1)&s.w.mask]
	r.stamp = n
	r.number, r.offset, r.size, r.requested = e.Number, value, count, elapsed
	r.stream, r.segment, r.pool, r.site = e.Stream, -1, text, s.siteText
	r.group, r.name, r.kind = s.groupText, name, uint8(e.Kind)
	r.end = uint16(n)
	runtime.KeepAlive(s) // and with it the mapping
}

// maxCalls bounds the calls whose text a Source remembers.
const maxCalls = 4096

// textOf returns the number of a call's text.
func (s *Source) textOf(c *event.Call) uint32 {
	if c == s.call {
		return s.callText
	}
	n, ok := s.calls[c]
	if !ok {
		if len(s.calls) == maxCalls {
			clear(s.calls)
		}
		plain := *c
		plain.Ticket = 0
		n = s.w.text(plain.String())
		s.calls[c] = n
	}
	s.call, s.callText = c, n
	return n
}
