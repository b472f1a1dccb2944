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

// Writer writes a trace: a file with the events of one rank, for example of rank 3 of 8. The file
// is mapped into memory, and consists of a header, a ring of records, and a text space.
//
// Each pool and group of the rank has a Source, which writes an event as one or two records.
// Sources share the ring: before a Source writes a record, it claims the next index, beginning at
// 0. In a ring with a capacity of 128 records, record 130 replaces record 2. Strings, such as the
// call site "a.go:1", are texts. Each text is in the text space once, and records refer to its
// number.
//
// A write to the file may cause a page fault, which takes microseconds. So a goroutine populates
// the ring: it causes these faults in advance, for a chunk of 32,768 records at a time.
//
// A Writer is safe for concurrent use, except for Close.
type Writer struct {
	path         string
	file         *os.File     // locked until Close, so that no other process replaces it
	mapping      *sys.Mapping // of the file
	bytes        []byte       // the contents of the file
	start        time.Time
	capacity     uint64         // of the ring, in records; a power of two
	claimedCount *atomic.Uint64 // the number of records claimed so far; in the header

	populateRequests chan struct{} // holds at most one request
	populateDone     chan struct{} // closed when the goroutine has returned

	mu            sync.Mutex
	textSpace     []byte            // the last part of bytes; the contents are guarded by mu
	usedTextBytes int               // the bytes of textSpace in use; guarded by mu
	textNumbers   map[string]uint32 // the number of each text; guarded by mu
}

// Options configures Create.
type Options struct {
	// Rank is the rank that writes the trace. It is less than Size, the number of ranks.
	Rank, Size int
	// Records is the capacity of the ring. It is rounded up to a power of two, and to at least 128.
	// 0 means 1<<20, which makes a file of 34 MiB. An allocation takes one record, and a collective
	// takes two.
	Records int
}

const (
	defaultRecords = 1 << 20
	maxRecords     = 1 << 30 // a file of 34 GiB; readers regard larger ones as damaged
	// The text space is smaller than the ring by this factor, because many records share a text.
	ringToTextSpace   = 16
	minTextSpaceBytes = 64 << 10 // for small rings
)

// Create creates a rank's trace in a folder, which it creates if necessary.
//
// The trace of rank 3 has the name rank3.trace, or world2-rank3.trace if this process has already
// created rank3.trace in that folder. An existing file with that name gets the suffix ".old", or
// causes an error if another process is still writing it. The new file has mode 0600.
//
// A folder that is a symbolic link causes an error. So does a full disk, because Create allocates
// all disk blocks of the file. Otherwise, a full disk would cause a SIGBUS later.
func Create(folder string, o Options) (*Writer, error) {
	isRankValid := o.Rank >= 0 && o.Size >= 1 // callers ensure that Rank is less than Size
	isCapacityValid := o.Records >= 0 && o.Records <= maxRecords
	if !isRankValid || !isCapacityValid {
		return nil, fmt.Errorf("creating a trace of rank %d of %d with %d records: out of range",
			o.Rank, o.Size, o.Records)
	}

	path, err := reservePath(folder, o.Rank)
	if err != nil {
		return nil, err
	}

	w, err := newWriter(path, o)
	if err != nil {
		reservedPaths.Delete(path) // undo reservePath, so that a later Create can use the path
		return nil, fmt.Errorf("creating a trace: %w", err)
	}

	go w.populateOnRequest()
	return w, nil
}

// newWriter creates a Writer and its file. The file has a temporary name until it is locked and has
// a header. Then it moves to path, so that other processes never find an incomplete file there.
func newWriter(path string, o Options) (*Writer, error) {
	capacity := ringCapacity(o.Records)
	ringBytes := capacity * recordBytes
	textSpaceBytes := max(ringBytes/ringToTextSpace, minTextSpaceBytes)
	fileBytes := int64(headerBytes + ringBytes + textSpaceBytes)
	temporary := temporaryName(path)
	f, err := sys.CreateFile(temporary, fileBytes)
	if err != nil {
		return nil, err
	}

	w := &Writer{
		path: path, file: f, start: time.Now(), capacity: capacity,
		populateRequests: make(chan struct{}, 1), populateDone: make(chan struct{}),
		textNumbers: map[string]uint32{},
	}
	err = w.initialize(o, fileBytes)
	if err == nil {
		err = moveIntoPlace(temporary, path)
	}

	if err != nil {
		releaseErr := w.release()
		removeErr := os.Remove(temporary)
		return nil, errors.Join(err, releaseErr, removeErr)
	}

	return w, nil
}

// ringCapacity returns the capacity of the ring for Options.Records.
func ringCapacity(records int) uint64 {
	requested := uint64(cmp.Or(records, defaultRecords))
	capacity := uint64(minRecords) // 128
	for capacity < requested {
		capacity *= 2
	}

	return capacity
}

// initialize locks and maps the new file, writes its header, and populates the first chunk.
func (w *Writer) initialize(o Options, fileBytes int64) error {
	if err := sys.LockFile(w.file); err != nil {
		return err
	}

	mapping, err := sys.Map(w.file, 0, fileBytes)
	if err != nil {
		return err
	}

	w.mapping = mapping
	w.bytes = unsafe.Slice((*byte)(mapping.Base()), fileBytes)
	w.textSpace = w.bytes[w.textSpaceBegin():]
	w.claimedCount = (*atomic.Uint64)(unsafe.Pointer(&w.bytes[offsetClaimedCount]))
	w.writeHeader(o)
	w.mapping.Populate(0, int64(headerBytes+w.chunkBytes()))
	return nil
}

// textSpaceBegin returns the offset of the text space in the file. The text space follows the ring.
func (w *Writer) textSpaceBegin() uint64 { return headerBytes + w.capacity*recordBytes }

// writeHeader writes the header of a new file. Its counts are 0 already, like the rest of the file.
func (w *Writer) writeHeader(o Options) {
	byteOrder := binary.LittleEndian
	byteOrder.PutUint32(w.bytes[offsetVersion:], version)
	byteOrder.PutUint32(w.bytes[offsetRecordBytes:], recordBytes)
	byteOrder.PutUint32(w.bytes[offsetRank:], uint32(o.Rank))
	byteOrder.PutUint32(w.bytes[offsetRankCount:], uint32(o.Size))
	byteOrder.PutUint32(w.bytes[offsetProcess:], uint32(os.Getpid()))
	byteOrder.PutUint64(w.bytes[offsetCapacity:], w.capacity)
	byteOrder.PutUint64(w.bytes[offsetTextSpaceBegin:], w.textSpaceBegin())
	byteOrder.PutUint64(w.bytes[offsetTextSpaceBytes:], uint64(len(w.textSpace)))
	byteOrder.PutUint64(w.bytes[offsetStart:], uint64(w.start.UnixNano()))
	host, _ := os.Hostname() // if this fails, the name is empty
	copy(w.bytes[offsetHost:offsetHost+maxHostBytes], host)
	copy(w.bytes, magic) // last, because it marks the file as a trace
}

// Close stops the goroutine, and unmaps and closes the file. No Source may be in use during Close
// or afterwards. A process may exit without Close, because its records are in the file already.
func (w *Writer) Close() error {
	close(w.populateRequests)
	<-w.populateDone
	if err := w.release(); err != nil {
		return fmt.Errorf("closing the trace %s: %w", w.path, err)
	}

	return nil
}

// release unmaps and closes the file, which also unlocks it.
func (w *Writer) release() error {
	var unmapErr error
	if w.mapping != nil { // nil if initialize could not map the file
		unmapErr = w.mapping.Close()
	}

	closeErr := w.file.Close()
	return errors.Join(unmapErr, closeErr)
}

const (
	chunkRecords = 1 << 15 // a power of two, so that the chunks fit exactly into a larger ring
	chunksAhead  = 2       // the number of chunks to populate after the current one
	// Populating takes small steps, because each system call locks the process's address space.
	populateStepBytes = 64 << 10
)

// chunkBytes returns the size of a chunk. A ring smaller than chunkRecords is a single chunk.
func (w *Writer) chunkBytes() uint64 { return min(chunkRecords, w.capacity) * recordBytes }

// requestPopulation makes the goroutine populate the chunks after the current one. Sources call it
// when their claims reach the end of a chunk. It never waits.
func (w *Writer) requestPopulation() {
	select {
	case w.populateRequests <- struct{}{}:
	default: // another request waits already, and has the same effect
	}
}

// populateOnRequest populates the next chunks at each request, until Close.
func (w *Writer) populateOnRequest() {
	defer close(w.populateDone)
	for range w.populateRequests {
		current := w.claimedCount.Load() / chunkRecords
		for chunk := current + 1; chunk <= current+chunksAhead; chunk++ {
			w.populateChunk(chunk)
		}
	}
}

// populateChunk populates a chunk. Chunks are numbered from 0: chunk 2 has the records with indexes
// 65,536 to 98,303. In a ring of 65,536 records, these replace the records of chunk 0.
func (w *Writer) populateChunk(chunk uint64) {
	firstRecord := chunk * chunkRecords
	placeInRing := firstRecord % w.capacity
	begin := headerBytes + placeInRing*recordBytes
	end := begin + w.chunkBytes()
	for offset := begin; offset < end; offset += populateStepBytes {
		stepBytes := min(populateStepBytes, end-offset)
		w.mapping.Populate(int64(offset), int64(stepBytes))
	}
}

const (
	textLengthBytes = 2    // in the text space, each text follows its length, in 16 bits
	maxTextBytes    = 4096 // longer texts are cut, so that one cannot fill the text space
)

// textNumber returns the number of a text, and adds a new text to the text space. The empty text
// has number 0, and others are numbered from 1. If the text space is full, the text is lost: the
// result is lostTextNumber, for which readers show "?".
func (w *Writer) textNumber(text string) uint32 {
	if text == "" {
		return 0
	}

	text = text[:min(len(text), maxTextBytes)]
	w.mu.Lock()
	defer w.mu.Unlock()
	if number, isKnown := w.textNumbers[text]; isKnown {
		return number
	}

	freeBytes := len(w.textSpace) - w.usedTextBytes
	if textLengthBytes+len(text) > freeBytes {
		w.countLostText()
		return lostTextNumber
	}

	number := uint32(len(w.textNumbers)) + 1
	w.textNumbers[strings.Clone(text)] = number // a copy, because text may be part of a longer string
	w.appendText(text)
	return number
}

// countLostText counts a lost text in the header. The caller holds mu.
func (w *Writer) countLostText() {
	counter := w.bytes[offsetLostTexts:]
	lostTexts := binary.LittleEndian.Uint64(counter)
	binary.LittleEndian.PutUint64(counter, lostTexts+1)
}

// appendText adds a text to the text space, which must have space for it. The caller holds mu.
func (w *Writer) appendText(text string) {
	free := w.textSpace[w.usedTextBytes:]
	binary.LittleEndian.PutUint16(free, uint16(len(text)))
	copy(free[textLengthBytes:], text)
	w.usedTextBytes += textLengthBytes + len(text)
	// The header changes last, so that readers find only complete texts.
	binary.LittleEndian.PutUint64(w.bytes[offsetUsedTextBytes:], uint64(w.usedTextBytes))
}

// sourceBits returns the bits of a record that identify its pool or group, which text names. They
// contain the number of this text, or unknownSourceNumber if the number is too large for 16 bits.
func (w *Writer) sourceBits(text string) uint64 {
	number := min(w.textNumber(text), unknownSourceNumber)
	return uint64(number) << sourceShift
}
