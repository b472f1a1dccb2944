package export

import (
	"bufio"
	"encoding/binary"
	"io"
	"strings"
)

// Opcodes of Python's pickle format, with their names in Python. They operate on a stack. For
// example, opEmptyList, opMark, opText "a", opInt32 7, opAppends build the list ["a", 7].
const (
	opProtocol    = 0x80 // PROTO
	opStop        = '.'  // STOP
	opMark        = '('  // MARK
	opEmptyList   = ']'  // EMPTY_LIST
	opAppends     = 'e'  // APPENDS: moves the items after the mark to the list before the mark
	opEmptyDict   = '}'  // EMPTY_DICT
	opSetItems    = 'u'  // SETITEMS: moves keys and values to the dict before the mark
	opText        = 'X'  // BINUNICODE
	opStoreInMemo = 'r'  // LONG_BINPUT: copies the top of the stack to the memo
	opGetFromMemo = 'j'  // LONG_BINGET: pushes a value of the memo
	opInt32       = 'J'  // BININT
	opLong        = 0x8a // LONG1: its argument begins with the length
	opFalse       = 0x89 // NEWFALSE
	opTuple2      = 0x86 // TUPLE2: replaces two values by a tuple of them
)

// pickler streams a pickle to a file. To write a list, call openList, beginListItem before each
// item, and closeList. To write a dict, call openDict, writeKey before each value, and closeDict.
type pickler struct {
	w            *bufio.Writer     // keeps its first error
	batchLengths []int             // items since the last opMark, for each open list
	memoNumbers  map[string]uint32 // number of each string in the memo
}

func newPickler(w io.Writer) *pickler {
	const bufferBytes = 1 << 16
	p := &pickler{w: bufio.NewWriterSize(w, bufferBytes), memoNumbers: map[string]uint32{}}
	const protocolVersion = 2
	p.writeBytes(opProtocol, protocolVersion)
	return p
}

// finish ends the pickle and returns the first error of any method.
func (p *pickler) finish() error {
	p.writeBytes(opStop)
	return p.w.Flush()
}

// writeBytes ignores the error, because finish returns it.
func (p *pickler) writeBytes(b ...byte) { _, _ = p.w.Write(b) }

func (p *pickler) openList() {
	p.writeBytes(opEmptyList, opMark)
	p.batchLengths = append(p.batchLengths, 0)
}

func (p *pickler) closeList() {
	p.writeBytes(opAppends)
	p.batchLengths = p.batchLengths[:len(p.batchLengths)-1]
}

// maxBatchItems limits one opAppends, as in Python. PyTorch's memory_viz page needs this limit.
const maxBatchItems = 1000

func (p *pickler) beginListItem() {
	innermost := len(p.batchLengths) - 1
	isBatchFull := p.batchLengths[innermost] == maxBatchItems
	if isBatchFull {
		p.writeBytes(opAppends, opMark)
		p.batchLengths[innermost] = 0
	}

	p.batchLengths[innermost]++
}

func (p *pickler) openDict()  { p.writeBytes(opEmptyDict, opMark) }
func (p *pickler) closeDict() { p.writeBytes(opSetItems) }

func (p *pickler) writeKey(name string) { p.writeText(name) }

// maxMemoStrings limits the memory for memoNumbers.
const maxMemoStrings = 1 << 16

// writeText writes a string or, if the memo contains it, its number.
func (p *pickler) writeText(s string) {
	s = strings.ToValidUTF8(s, "?")
	if number, isInMemo := p.memoNumbers[s]; isInMemo {
		p.writeBytes(opGetFromMemo)
		p.writeUint32(number)
		return
	}

	p.writeBytes(opText)
	p.writeUint32(uint32(len(s)))
	_, _ = p.w.WriteString(s)
	number := uint32(len(p.memoNumbers))
	if number < maxMemoStrings {
		p.memoNumbers[s] = number
		p.writeBytes(opStoreInMemo)
		p.writeUint32(number)
	}
}

// writeUint32 writes a number in little-endian order, as arguments of opcodes require.
func (p *pickler) writeUint32(n uint32) {
	p.writeBytes(binary.LittleEndian.AppendUint32(nil, n)...)
}

func (p *pickler) writeInteger(n int64) {
	fitsInt32 := n == int64(int32(n))
	if fitsInt32 {
		p.writeBytes(opInt32)
		p.writeUint32(uint32(n))
		return
	}

	const int64Bytes = 8
	p.writeBytes(binary.LittleEndian.AppendUint64([]byte{opLong, int64Bytes}, uint64(n))...)
}

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

func (p *pickler) writePairItem(key string, first, second int64) {
	p.writeKey(key)
	p.writeInteger(first)
	p.writeInteger(second)
	p.writeBytes(opTuple2)
}

// frame is a frame of a Python call stack. The zero frame stands for an unknown one.
type frame struct {
	name string // of the function
	file string
	line int64
}

// writeFrames writes the item "frames": a call stack with one frame, or none for the zero frame.
func (p *pickler) writeFrames(f frame) {
	p.writeKey("frames")
	p.openList()
	if f != (frame{}) {
		p.beginListItem()
		p.openDict()
		p.writeTextItem("name", f.name)
		p.writeTextItem("filename", f.file)
		p.writeIntegerItem("line", f.line)
		p.closeDict()
	}

	p.closeList()
}
