package export

import (
	"bufio"
	"encoding/binary"
	"io"
	"strings"
)

// pickler writes a Python value as a pickle of protocol 2, without holding the value in memory.
// To write a list or dict, the caller opens it, writes its items, and closes it. Before each item
// of a list, the caller calls beginItem. Errors of writing are returned by finish only.
type pickler struct {
	w *bufio.Writer // keeps the first error
	// stringNumbers holds the numbers of strings in the memo, the pickle's table of values. A
	// string in the memo can be written as its number.
	stringNumbers map[string]uint32
	batchLengths  []int // number of items in the current batch of each open list (see beginItem)
}

// frame describes a line of a call stack.
type frame struct {
	name string // name of the function
	file string // path of the source file
	line int64
}

const maxStoredStrings = 1 << 16 // limit of len(stringNumbers)

// The opcodes of pickles. The comments have the names in Python's module pickle, if they differ.
const (
	opProtocol    = 0x80 // PROTO
	opStop        = '.'
	opMark        = '('
	opEmptyList   = ']'
	opAppends     = 'e'
	opEmptyDict   = '}'
	opSetItems    = 'u'
	opText        = 'X'  // BINUNICODE
	opStoreInMemo = 'r'  // LONG_BINPUT
	opGetFromMemo = 'j'  // LONG_BINGET
	opInt32       = 'J'  // BININT
	opLong        = 0x8a // LONG1
	opFalse       = 0x89 // NEWFALSE
	opTuple2      = 0x86 // TUPLE2
)

func newPickler(w io.Writer) *pickler {
	const bufferBytes = 1 << 16
	p := &pickler{w: bufio.NewWriterSize(w, bufferBytes), stringNumbers: map[string]uint32{}}
	const protocol = 2
	p.writeBytes(opProtocol, protocol)
	return p
}

// finish completes the pickle. It returns the first error of any method.
func (p *pickler) finish() error {
	p.writeBytes(opStop)
	return p.w.Flush()
}

func (p *pickler) writeBytes(b ...byte) { _, _ = p.w.Write(b) }

// openList begins a list. The mark shows where the items of a batch begin.
func (p *pickler) openList() {
	p.writeBytes(opEmptyList, opMark)
	p.batchLengths = append(p.batchLengths, 0)
}

func (p *pickler) closeList() {
	p.writeBytes(opAppends)
	p.batchLengths = p.batchLengths[:len(p.batchLengths)-1]
}

// maxBatchItems is the number of items that one operation adds to a list, as in Python's pickler.
// PyTorch's memory_viz page fails with many more items.
const maxBatchItems = 1000

// beginItem counts an item of the innermost open list. If the current batch is full, it first
// appends the batch to the list, and begins a new batch.
func (p *pickler) beginItem() {
	innermost := len(p.batchLengths) - 1
	if p.batchLengths[innermost] == maxBatchItems {
		p.writeBytes(opAppends, opMark)
		p.batchLengths[innermost] = 0
	}

	p.batchLengths[innermost]++
}

func (p *pickler) openDict()  { p.writeBytes(opEmptyDict, opMark) }
func (p *pickler) closeDict() { p.writeBytes(opSetItems) }

// writeKey writes a key of a dict. The caller must write the value next.
func (p *pickler) writeKey(name string) { p.writeText(name) }

// writeText writes a string or, if it is in the memo, its number there. It adds the first strings
// to the memo.
func (p *pickler) writeText(s string) {
	s = strings.ToValidUTF8(s, "?")
	if n, ok := p.stringNumbers[s]; ok {
		p.writeBytes(opGetFromMemo)
		p.writeUint32(n)
		return
	}

	p.writeBytes(opText)
	p.writeUint32(uint32(len(s)))
	_, _ = p.w.WriteString(s)
	if n := uint32(len(p.stringNumbers)); n < maxStoredStrings {
		p.stringNumbers[s] = n
		p.writeBytes(opStoreInMemo)
		p.writeUint32(n)
	}
}

func (p *pickler) writeUint32(n uint32) {
	p.writeBytes(binary.LittleEndian.AppendUint32(nil, n)...)
}

func (p *pickler) writeInteger(n int64) {
	if n == int64(int32(n)) { // fits
		p.writeBytes(opInt32)
		p.writeUint32(uint32(n))
		return
	}

	const byteCount = 8
	p.writeBytes(binary.LittleEndian.AppendUint64([]byte{opLong, byteCount}, uint64(n))...)
}

// The following methods write a key and its value to a dict.

func (p *pickler) writeTextItem(key, value string) {
	p.writeKey(key)
	p.writeText(value)
}

func (p *pickler) writeIntegerItem(key string, value int64) {
	p.writeKey(key)
	p.writeInteger(value)
}

func (p *pickler) writeFalseItem(key string) {
	p.writeKey(key)
	p.writeBytes(opFalse)
}

// writePairItem writes a key and a tuple of two integers.
func (p *pickler) writePairItem(key string, first, second int64) {
	p.writeKey(key)
	p.writeInteger(first)
	p.writeInteger(second)
	p.writeBytes(opTuple2)
}

// writeFrames writes the key "frames" and a call stack. The stack has the frame f only. If f is the
// zero frame, the stack is empty.
func (p *pickler) writeFrames(f frame) {
	p.writeKey("frames")
	p.openList()
	if f != (frame{}) {
		p.beginItem()
		p.openDict()
		p.writeTextItem("name", f.name)
		p.writeTextItem("filename", f.file)
		p.writeIntegerItem("line", f.line)
		p.closeDict()
	}

	p.closeList()
}
