package trace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"symmem/internal/sys"
)

// Options configures Create.
type Options struct {
	// Rank writes the trace, one of Size ranks.
	Rank, Size int
	// Records is the capacity, rounded up to a power of two of at least 128. An allocation takes one
	// record, and a collective two. 0 means 1<<20, a file of 34 MiB.
	Records int
}

const (
	defaultRecords = 1 << 20
	maxRecords     = 1 << 30
	// recordToTextRatio is the space for records divided by that for texts (strings that records
	// refer to by number).
	recordToTextRatio = 16
	minTextBytes      = 64 << 10
)

// Writer writes a trace. It is safe for concurrent use, but no Source may be in use during Close.
// Close is optional, because the file is complete after each event.
type Writer struct {
	path             string
	file             *os.File // locked while the trace is being written
	mapping          *sys.Mapping
	bytes            []byte
	indexMask        uint64
	claimedCount     *atomic.Uint64 // records claimed for events
	start            time.Time
	populateRequests chan struct{} // for populateChunks
	done             chan struct{} // closed when populateChunks returns

	mu            sync.Mutex
	textNumbers   map[string]uint32 // guarded by mu
	usedTextBytes uint64            // guarded by mu
	textSpace     []byte
}

// Create creates the trace of a rank in a folder, and the folder if necessary. An existing trace
// gets the suffix ".old", or causes an error if another process is still writing it. If this
// process has created a trace of the same rank, the new file gets a different name. Files have mode
// 0600. Neither the folder nor a file in it may be a symbolic link.
//
// Create allocates all disk blocks of the file, so that a full disk causes an error here rather
// than a SIGBUS later.
func Create(folder string, o Options) (*Writer, error) {
	if o.Records < 0 || o.Records > maxRecords || o.Rank < 0 || o.Size < 1 {
		return nil, fmt.Errorf("creating a trace of rank %d of %d with %d records: out of range",
			o.Rank, o.Size, o.Records)
	}
	path, err := choosePath(folder, o.Rank)
	if err != nil {
		return nil, err
	}
	w, err := create(path, o)
	if err != nil {
		usedPaths.Delete(path)
		return nil, fmt.Errorf("creating a trace: %w", err)
	}
	go w.populateChunks()
	return w, nil
}

// create locks a temporary file before it moves the file to path.
func create(path string, o Options) (*Writer, error) {
	records := uint64(minRecords)
	for records < uint64(o.Records) || o.Records == 0 && records < defaultRecords {
		records *= 2
	}
	textBytes := max(records*recordBytes/recordToTextRatio, minTextBytes)
	size := int64(headerBytes + records*recordBytes + textBytes)
	temporary := temporaryName(path)
	f, err := sys.CreateFile(temporary, size)
	if err != nil {
		return nil, err
	}
	w := &Writer{
		path: path, file: f, indexMask: records - 1, start: time.Now(), textNumbers: map[string]uint32{},
		populateRequests: make(chan struct{}, 1), done: make(chan struct{}),
	}
	if err = sys.LockFile(f); err == nil {
		w.mapping, err = sys.Map(f, 0, size)
	}
	if err == nil {
		w.bytes = unsafe.Slice((*byte)(w.mapping.Base()), size)
		w.textSpace = w.bytes[headerBytes+records*recordBytes:]
		w.claimedCount = (*atomic.Uint64)(unsafe.Pointer(&w.bytes[offsetNext]))
		w.writeHeader(o, records, textBytes)
		w.mapping.Populate(0, headerBytes+min(chunkBytes, int64(records*recordBytes)))
		err = moveIntoPlace(temporary, path)
	}
	if err != nil {
		return nil, errors.Join(err, w.release(), os.Remove(temporary))
	}
	return w, nil
}

func (w *Writer) release() error {
	var err error
	if w.mapping != nil {
		err = w.mapping.Close()
	}
	return errors.Join(err, w.file.Close())
}

// Close unmaps the file. No Source may be used afterwards.
func (w *Writer) Close() error {
	close(w.populateRequests)
	<-w.done
	if err := w.release(); err != nil {
		return fmt.Errorf("closing the trace %s: %w", w.path, err)
	}
	return nil
}

// writeHeader writes the magic string last, because it marks the file as a trace.
func (w *Writer) writeHeader(o Options, records, textBytes uint64) {
	byteOrder := binary.LittleEndian
	byteOrder.PutUint32(w.bytes[offsetVersion:], version)
	byteOrder.PutUint32(w.bytes[offsetRecord:], recordBytes)
	byteOrder.PutUint32(w.bytes[offsetRank:], uint32(o.Rank))
	byteOrder.PutUint32(w.bytes[offsetSize:], uint32(o.Size))
	byteOrder.PutUint32(w.bytes[offsetProcess:], uint32(os.Getpid()))
	byteOrder.PutUint64(w.bytes[offsetCapacity:], records)
	byteOrder.PutUint64(w.bytes[offsetTexts:], headerBytes+records*recordBytes)
	byteOrder.PutUint64(w.bytes[offsetRoom:], textBytes)
	byteOrder.PutUint64(w.bytes[offsetStart:], uint64(w.start.UnixNano()))
	host, _ := os.Hostname() // if this fails, the name is empty
	copy(w.bytes[offsetHost:offsetHost+maxHostBytes], host)
	copy(w.bytes, magic)
}

const (
	// Pages of chunkRecords records are populated (made writable) in advance, because a page fault
	// takes microseconds.
	chunkRecords = 1 << 15
	chunkBytes   = chunkRecords * recordBytes
	// populateAhead is the number of chunks to populate in advance.
	populateAhead = 2
	// populateStep is small because each system call locks the address space.
	populateStep = 64 << 10
)

func (w *Writer) requestPopulation() {
	select {
	case w.populateRequests <- struct{}{}:
	default:
	}
}

func (w *Writer) populateChunks() {
	defer close(w.done)
	for range w.populateRequests {
		chunk := w.claimedCount.Load() / chunkRecords
		for i := range uint64(populateAhead) {
			first := (chunk + 1 + i) * chunkRecords & w.indexMask * recordBytes
			end := min(first+chunkBytes, (w.indexMask+1)*recordBytes)
			for at := first; at < end; at += populateStep {
				w.mapping.Populate(int64(headerBytes+at), int64(min(populateStep, end-at)))
			}
		}
	}
}

// textNumber adds a new text to the file. Numbers begin at 1; the empty text has number 0.
func (w *Writer) textNumber(s string) uint32 {
	if s == "" {
		return 0
	}
	s = s[:min(len(s), maxTextBytes)]
	w.mu.Lock()
	defer w.mu.Unlock()
	if n, ok := w.textNumbers[s]; ok {
		return n
	}
	if w.usedTextBytes+2+uint64(len(s)) > uint64(len(w.textSpace)) {
		omittedCount := binary.LittleEndian.Uint64(w.bytes[offsetLost:])
		binary.LittleEndian.PutUint64(w.bytes[offsetLost:], omittedCount+1)
		return omittedTextNumber
	}
	n := uint32(len(w.textNumbers)) + 1
	w.textNumbers[strings.Clone(s)] = n // s may be part of a longer string
	at := w.textSpace[w.usedTextBytes:]
	binary.LittleEndian.PutUint16(at, uint16(len(s)))
	copy(at[2:], s)
	w.usedTextBytes += 2 + uint64(len(s))
	binary.LittleEndian.PutUint64(w.bytes[offsetUsed:], w.usedTextBytes)
	return n
}

const maxTextBytes = 4096

// sourceBits returns the bits of a record's head for a pool or group.
func (w *Writer) sourceBits(text string) uint64 {
	return uint64(min(w.textNumber(text), omittedSourceNumber)) << sourceShift
}
