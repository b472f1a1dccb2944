package export

import (
	"bufio"
	"encoding/binary"
	"io"
	"strings"
)

// pickler writes a Python value as a pickle of protocol 2, without holding the value in memory. The
// caller opens a list or dict, writes its items, and closes it. Before each item of a list, the
// caller calls beginItem.
type pickler struct {
	w             *bufio.Writer
	stringNumbers map[string]uint32 // numbers of the strings that later operations can refer to
	batchLengths  []int             // for each open list, the number of items in the current batch
}

// frame describes a line of a call stack.
type frame struct {
	name, file string
	line       int64
}

const maxStoredStrings = 1 << 16 // limit of len(stringNumbers)

func newPickler(w io.Writer) *pickler {
	p := &pickler{w: bufio.NewWriterSize(w, 1<<16), stringNumbers: map[string]uint32{}}
	p.writeOpcode(0x80, 2)
	return p
}

// finish completes the pickle. It returns the first error of any method.
func (p *pickler) finish() error {
	p.writeOpcode('.')
	return p.w.Flush()
}

// writeOpcode ignores errors, because finish returns the first one.
func (p *pickler) writeOpcode(b ...byte) { _, _ = p.w.Write(b) }

func (p *pickler) openList() {
	p.writeOpcode(']', '(')
	p.batchLengths = append(p.batchLengths, 0)
}

func (p *pickler) closeList() {
	p.writeOpcode('e')
	p.batchLengths = p.batchLengths[:len(p.batchLengths)-1]
}

// maxBatchItems is the number of items that one operation adds to a list, as in Python's pickler.
// PyTorch's memory_viz page fails with many more items.
const maxBatchItems = 1000

func (p *pickler) beginItem() {
	n := &p.batchLengths[len(p.batchLengths)-1]
	if *n == maxBatchItems {
		p.writeOpcode('e', '(')
		*n = 0
	}
	*n++
}

func (p *pickler) openDict()  { p.writeOpcode('}', '(') }
func (p *pickler) closeDict() { p.writeOpcode('u') }

// writeKey writes a key of a dict. The caller must write the value next.
func (p *pickler) writeKey(name string) { p.writeText(name) }

func (p *pickler) writeText(s string) {
	s = strings.ToValidUTF8(s, "?")
	if n, ok := p.stringNumbers[s]; ok {
		p.writeOpcode('j')
		p.writeUint32(n)
		return
	}
	p.writeOpcode('X')
	p.writeUint32(uint32(len(s)))
	_, _ = p.w.WriteString(s)
	if n := uint32(len(p.stringNumbers)); n < maxStoredStrings {
		p.stringNumbers[s] = n
		p.writeOpcode('r')
		p.writeUint32(n)
	}
}

func (p *pickler) writeUint32(n uint32) {
	p.writeOpcode(binary.LittleEndian.AppendUint32(nil, n)...)
}

func (p *pickler) writeInteger(n int64) {
	if n == int64(int32(n)) {
		p.writeOpcode('J')
		p.writeUint32(uint32(n))
		return
	}
	p.writeOpcode(binary.LittleEndian.AppendUint64([]byte{0x8a, 8}, uint64(n))...)
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
	p.writeOpcode(0x89)
}

// writePairItem writes a key and a tuple of two integers.
func (p *pickler) writePairItem(key string, first, second int64) {
	p.writeKey(key)
	p.writeInteger(first)
	p.writeInteger(second)
	p.writeOpcode(0x86)
}

// writeFrames writes the key "frames" and a call stack of one frame, or none if f is empty.
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
