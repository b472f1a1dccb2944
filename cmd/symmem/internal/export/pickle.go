package export

import (
	"bufio"
	"encoding/binary"
	"io"
	"strings"
)

// pickler writes a Python value as a pickle of protocol 2, without holding the value in memory. The
// caller opens a list or dict, writes the items, and closes the list or dict. Before each item of a
// list, the caller calls item. finish returns any write error.
type pickler struct {
	w       *bufio.Writer
	strings map[string]uint32 // number of each string in the pickle's memo
	batches []int             // for each open list, the number of items in the current batch
}

// frame describes a line of a call stack in a pickle.
type frame struct {
	name, file string
	line       int64
}

// maxStrings limits the number of strings in the memo. Other strings are written at each
// occurrence.
const maxStrings = 1 << 16

func newPickler(w io.Writer) *pickler {
	p := &pickler{w: bufio.NewWriterSize(w, 1<<16), strings: map[string]uint32{}}
	p.code(0x80, 2)
	return p
}

// finish completes the pickle and returns the first write error.
func (p *pickler) finish() error {
	p.code('.')
	return p.w.Flush()
}

// code writes opcodes. It ignores errors, because Flush returns the first error.
func (p *pickler) code(b ...byte) { _, _ = p.w.Write(b) }

func (p *pickler) openList() {
	p.code(']', '(')
	p.batches = append(p.batches, 0)
}

func (p *pickler) closeList() {
	p.code('e')
	p.batches = p.batches[:len(p.batches)-1]
}

// batchItems is the number of items by which one operation extends a list, as in Python's pickler.
// PyTorch's page memory_viz fails if a list is extended by many more items at once.
const batchItems = 1000

// item must be called before each item of a list.
func (p *pickler) item() {
	n := &p.batches[len(p.batches)-1]
	if *n == batchItems {
		p.code('e', '(')
		*n = 0
	}
	*n++
}

func (p *pickler) openDict()  { p.code('}', '(') }
func (p *pickler) closeDict() { p.code('u') }

// key writes a key of a dict. The caller must write the value afterwards.
func (p *pickler) key(name string) { p.text(name) }

func (p *pickler) text(s string) {
	s = strings.ToValidUTF8(s, "?")
	if n, ok := p.strings[s]; ok {
		p.code('j')
		p.number(n)
		return
	}
	p.code('X')
	p.number(uint32(len(s)))
	_, _ = p.w.WriteString(s)
	if n := uint32(len(p.strings)); n < maxStrings {
		p.strings[s] = n
		p.code('r')
		p.number(n)
	}
}

func (p *pickler) number(n uint32) {
	p.code(binary.LittleEndian.AppendUint32(nil, n)...)
}

func (p *pickler) integer(n int64) {
	if n == int64(int32(n)) {
		p.code('J')
		p.number(uint32(n))
		return
	}
	p.code(binary.LittleEndian.AppendUint64([]byte{0x8a, 8}, uint64(n))...)
}

// The following methods write a key and its value to a dict.

func (p *pickler) textItem(key, value string) {
	p.key(key)
	p.text(value)
}

func (p *pickler) integerItem(key string, value int64) {
	p.key(key)
	p.integer(value)
}

func (p *pickler) falseItem(key string) {
	p.key(key)
	p.code(0x89)
}

// pairItem writes a key with a tuple of two integers.
func (p *pickler) pairItem(key string, first, second int64) {
	p.key(key)
	p.integer(first)
	p.integer(second)
	p.code(0x86)
}

// frames writes a call stack under the key "frames". If f is empty, the stack is unknown.
func (p *pickler) frames(f frame) {
	p.key("frames")
	p.openList()
	if f != (frame{}) {
		p.item()
		p.openDict()
		p.textItem("name", f.name)
		p.textItem("filename", f.file)
		p.integerItem("line", f.line)
		p.closeDict()
	}
	p.closeList()
}
