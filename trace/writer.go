package trace

import (
	"cmp"
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
	bytes            []byte         // the whole file: the header, records, and texts
	indexMask        uint64         // capacity minus 1: index&indexMask is a place in the file
	claimedCount     *atomic.Uint64 // records claimed for events; in the header of the file
	start            time.Time
	populateRequests chan struct{} // for populateChunks
	done             chan struct{} // closed when populateChunks returns

	mu            sync.Mutex
	textNumbers   map[string]uint32 // guarded by mu
	usedTextBytes uint64            // in textSpace; guarded by mu
	textSpace     []byte            // the part of bytes for texts
}

// Create creates the trace of a rank in a folder, and the folder if necessary. An existing trace
// gets the suffix ".old", or causes an error if another process is still writing it. If this
// process has created a trace of the same rank, the new file gets a different name. Files have mode
// 0600. Neither the folder nor a file in it may be a symbolic link.
//
// Create allocates all disk blocks of the file, so that a full disk causes an error here rather
// than a SIGBUS later.
func Create(folder string, o Options) (*Writer, error) {
	hasValidRecords := o.Records >= 0 && o.Records <= maxRecords
	if !hasValidRecords || o.Rank < 0 || o.Size < 1 {
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

// create creates the file and maps it. It creates a temporary file, and moves that to path when it
// is locked and complete.
func create(path string, o Options) (*Writer, error) {
	requestedRecords := uint64(cmp.Or(o.Records, defaultRecords))
	records := uint64(minRecords)
	for records < requestedRecords {
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
	err = sys.LockFile(f)
	if err == nil {
		w.mapping, err = sys.Map(f, 0, size)
	}

	if err == nil {
		w.bytes = unsafe.Slice((*byte)(w.mapping.Base()), size)
		w.textSpace = w.bytes[headerBytes+records*recordBytes:]
		w.claimedCount = (*atomic.Uint64)(unsafe.Pointer(&w.bytes[offsetNext]))
		w.writeHeader(o, records, textBytes)
		firstChunkBytes := min(chunkBytes, int64(records*recordBytes))
		w.mapping.Populate(0, headerBytes+firstChunkBytes)
		err = moveIntoPlace(temporary, path)
	}

	if err != nil {
		releaseErr := w.release()
		removeErr := os.Remove(temporary)
		return nil, errors.Join(err, releaseErr, removeErr)
	}

	return w, nil
}

// release unmaps and closes the file.
func (w *Writer) release() error {
	var unmapErr error
	if w.mapping != nil { // nil if create has failed
		unmapErr = w.mapping.Close()
	}

	closeErr := w.file.Close()
	return errors.Join(unmapErr, closeErr)
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
	// The pages of the file are populated (made writable) in advance, in chunks of chunkRecords
	// records, because a page fault takes microseconds.
	chunkRecords = 1 << 15
	chunkBytes   = chunkRecords * recordBytes
	// populateAhead is the number of chunks to populate in advance.
	populateAhead = 2
	// populateStep is the number of bytes per system call. It is small because each system call
	// locks the address space.
	populateStep = 64 << 10
)

// requestPopulation makes populateChunks populate the chunks after the current one. It never waits:
// if a request is pending already, that one suffices.
func (w *Writer) requestPopulation() {
	select {
	case w.populateRequests <- struct{}{}:
	default:
	}
}

// populateChunks handles requests until Close.
func (w *Writer) populateChunks() {
	defer close(w.done)
	for range w.populateRequests {
		chunk := w.claimedCount.Load() / chunkRecords
		for i := range uint64(populateAhead) {
			firstRecord := (chunk + 1 + i) * chunkRecords & w.indexMask
			begin := firstRecord * recordBytes
			end := min(begin+chunkBytes, (w.indexMask+1)*recordBytes)
			for offset := begin; offset < end; offset += populateStep {
				size := min(populateStep, end-offset)
				w.mapping.Populate(int64(headerBytes+offset), int64(size))
			}
		}
	}
}

// textNumber returns the number by which records refer to a text. If the text is new, it first adds
// the text to the file. Numbers begin at 1, and the empty text has number 0. If there is no space,
// the result is omittedTextNumber.
func (w *Writer) textNumber(s string) uint32 {
	if s == "" {
		return 0
	}

	s = s[:min(len(s), maxTextBytes)]
	w.mu.Lock()
	defer w.mu.Unlock()
	if number, isKnown := w.textNumbers[s]; isKnown {
		return number
	}

	const lengthBytes = 2 // a text is preceded by its length
	needed := lengthBytes + uint64(len(s))
	if w.usedTextBytes+needed > uint64(len(w.textSpace)) {
		omittedCount := binary.LittleEndian.Uint64(w.bytes[offsetLost:])
		binary.LittleEndian.PutUint64(w.bytes[offsetLost:], omittedCount+1)
		return omittedTextNumber
	}

	number := uint32(len(w.textNumbers)) + 1
	w.textNumbers[strings.Clone(s)] = number // a copy, because s may be part of a longer string
	free := w.textSpace[w.usedTextBytes:]
	binary.LittleEndian.PutUint16(free, uint16(len(s)))
	copy(free[lengthBytes:], s)
	w.usedTextBytes += needed
	// Last, so that readers find only complete texts.
	binary.LittleEndian.PutUint64(w.bytes[offsetUsed:], w.usedTextBytes)
	return number
}

// maxTextBytes limits the length of a text, which must fit into 16 bits.
const maxTextBytes = 4096

// sourceBits returns the bits of a record's head for the pool or group that text names.
func (w *Writer) sourceBits(text string) uint64 {
	number := min(w.textNumber(text), omittedSourceNumber) // must fit into 16 bits
	return uint64(number) << sourceShift
}
