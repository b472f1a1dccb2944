package export

import (
	"bufio"
	"encoding/binary"
	"io"
	"strings"
)

// A pickle is an encoded Python value. It consists of operations, which build the value on a stack.
// For example, these operations build the list ["a", 7]:
//
//	opEmptyList     push an empty list
//	opMark          push a mark
//	opText "a"      push the string "a"
//	opInt32 7       push the integer 7
//	opAppends       remove the mark and the items above it, and append the items to the list
//
// The items between a mark and opAppends are a batch. A long list needs several batches. A dict is
// built in the same way, from keys and values in turn.

// The opcodes of operations. The comments have the names in Python's module pickle, if they differ.
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

// pickler writes a pickle piece by piece, so that it never holds the whole value in memory.
//
// A list is written by openList, beginItem before each item, and closeList. A dict is written by
// openDict, writeKey before each value, and closeDict. If writing fails, finish returns the error.
type pickler struct {
	w            *bufio.Writer // keeps the first error
	batchLengths []int         // the length of the current batch of each open list, innermost last

	// memoNumbers holds the numbers of strings in the memo, a table in the reader of the pickle. Such
	// a string is written as its number.
	memoNumbers map[string]uint32
}

func newPickler(w io.Writer) *pickler {
	const bufferBytes = 1 << 16
	p := &pickler{w: bufio.NewWriterSize(w, bufferBytes), memoNumbers: map[string]uint32{}}
	const protocol = 2 // the version of the format
	p.writeBytes(opProtocol, protocol)
	return p
}

// finish completes the pickle. It returns the first error of any method.
func (p *pickler) finish() error {
	p.writeBytes(opStop)
	return p.w.Flush()
}

func (p *pickler) writeBytes(b ...byte) { _, _ = p.w.Write(b) }

func (p *pickler) openList() {
	p.writeBytes(opEmptyList, opMark)
	p.batchLengths = append(p.batchLengths, 0)
}

func (p *pickler) closeList() {
	p.writeBytes(opAppends)
	p.batchLengths = p.batchLengths[:len(p.batchLengths)-1]
}

// maxBatchItems is the largest length of a batch, as in Python's pickler. PyTorch's memory_viz page
// fails with many more items.
const maxBatchItems = 1000

// beginItem begins an item of the innermost open list. The caller must write the item next.
func (p *pickler) beginItem() {
	innermost := len(p.batchLengths) - 1
	isBatchFull := p.batchLengths[innermost] == maxBatchItems
	if isBatchFull {
		p.writeBytes(opAppends, opMark) // end the batch, and begin another one
		p.batchLengths[innermost] = 0
	}

	p.batchLengths[innermost]++
}

func (p *pickler) openDict()  { p.writeBytes(opEmptyDict, opMark) }
func (p *pickler) closeDict() { p.writeBytes(opSetItems) }

// writeKey writes a key of a dict. The caller must write the value next.
func (p *pickler) writeKey(name string) { p.writeText(name) }

// maxMemoStrings limits the number of strings in the memo.
const maxMemoStrings = 1 << 16

// writeText writes a string or, if the memo has it, its number in the memo. It adds a new string to
// the memo, unless the memo is full.
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

// writeUint32 writes the argument of an operation.
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

	const byteCount = 8 // of n
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
	p.writeBytes(opTuple2) // makes a tuple of the two integers
}

// frame is a line of a call stack, such as line 12 of "train.py" in the function "main".
type frame struct {
	name string // of the function
	file string
	line int64
}

// writeFrames writes the key "frames" and a list with the frame f. If f is the zero frame, the list
// is empty.
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
