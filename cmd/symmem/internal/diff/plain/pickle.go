package plain

import (
	"encoding/binary"
	"errors"
	"io"
	"math"
)

// The pickle operations, named as in Python's pickletools.
const (
	opMark            = '('
	opStop            = '.'
	opPop             = '0'
	opPopMark         = '1'
	opDup             = '2'
	opBinInt          = 'J'
	opBinInt1         = 'K'
	opBinInt2         = 'M'
	opNone            = 'N'
	opBinString       = 'T'
	opShortBinString  = 'U'
	opBinUnicode      = 'X'
	opAppend          = 'a'
	opAppends         = 'e'
	opDict            = 'd'
	opEmptyDict       = '}'
	opList            = 'l'
	opEmptyList       = ']'
	opBinGet          = 'h'
	opLongBinGet      = 'j'
	opBinPut          = 'q'
	opLongBinPut      = 'r'
	opSetItem         = 's'
	opSetItems        = 'u'
	opTuple           = 't'
	opEmptyTuple      = ')'
	opBinFloat        = 'G'
	opProto           = 0x80
	opTuple1          = 0x85
	opTuple2          = 0x86
	opTuple3          = 0x87
	opNewTrue         = 0x88
	opNewFalse        = 0x89
	opLong1           = 0x8a
	opLong4           = 0x8b
	opShortBinUnicode = 0x8c
	opBinUnicode8     = 0x8d
	opBinBytes8       = 0x8e
	opBinBytes        = 'B'
	opShortBinBytes   = 'C'
	opMemoize         = 0x94
	opFrame           = 0x95
	opByteArray8      = 0x96
)

// forbiddenOperations names the operations that refer to code or to objects outside the file.
// Reading one of them is an error.
var forbiddenOperations = map[byte]string{
	'c': "GLOBAL", 0x93: "STACK_GLOBAL", 'R': "REDUCE", 'b': "BUILD", 'i': "INST", 'o': "OBJ",
	0x81: "NEWOBJ", 0x92: "NEWOBJ_EX", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", 'P': "PERSID",
	'Q': "BINPERSID", 0x97: "NEXT_BUFFER", 0x98: "READONLY_BUFFER",
}

// maxProtocol is the newest supported pickle protocol.
const maxProtocol = 5

type pickle struct {
	*machine
	*input
}

func (p *pickle) run() error {
	for {
		op, err := p.readByte()
		if err != nil {
			return err
		}

		if op == opStop {
			if _, err := p.peek(); !errors.Is(err, io.EOF) {
				return formatError("it goes on after its end at byte %d", p.offset)
			}

			return nil
		}

		if err := p.execute(op); err != nil {
			return err
		}
	}
}

func (p *pickle) execute(op byte) error {
	switch op {
	case opMark:
		return p.addMark()
	case opEmptyDict:
		return p.pushDict()
	case opEmptyList:
		return p.pushList()
	case opEmptyTuple:
		return p.pushTuple(nil)
	case opSetItems:
		return p.appendToDict()
	case opAppends:
		return p.appendToList()
	case opTuple1, opTuple2, opTuple3:
		return p.pushShortTuple(int(op) - opTuple1 + 1)
	case opMemoize:
		return p.storeInMemo(uint64(len(p.memo)))
	case opBinPut, opLongBinPut, opBinGet, opLongBinGet:
		return p.executeMemoOperation(op)
	case opAppend, opSetItem, opTuple, opList, opDict, opPop, opPopMark, opDup:
		return p.executeRareOperation(op)
	}

	return p.executeScalarOperation(op)
}

// executeRareOperation executes operations on containers that are rare in pickles.
func (p *pickle) executeRareOperation(op byte) error {
	switch op {
	case opAppend, opSetItem:
		return p.appendOne(op)
	case opPop:
		_, err := p.pop()
		return err
	case opDup:
		v, err := p.pop()
		if err != nil {
			return err
		}

		_ = p.push(v) // cannot fail: it replaces a popped value
		return p.push(v)
	}

	values, err := p.popMark()
	if err != nil || op == opPopMark {
		return err
	}

	if op == opTuple {
		return p.pushTuple(values)
	}

	k := listKind
	if op == opDict {
		k = dictKind
	}

	if k == dictKind && len(values)%2 != 0 {
		return formatError("a key has no value")
	}

	v := p.doc.newObject(k)
	if err := p.doc.appendItems(p.doc.object(v), values); err != nil {
		return err
	}

	return p.push(v)
}

// appendOne appends one element to a list, or adds one key and its value to a dict.
func (p *pickle) appendOne(op byte) error {
	n := 1
	if op == opSetItem {
		n = 2
	}

	at := len(p.stack) - n
	if at <= p.lastMark() {
		return formatError("an operation lacks its values")
	}

	values := p.stack[at:]
	p.stack = p.stack[:at]
	if op == opSetItem {
		o, err := p.topContainer(dictKind)
		if err != nil {
			return err
		}

		return p.doc.appendItems(o, values)
	}

	o, err := p.topContainer(listKind)
	if err != nil {
		return err
	}

	return p.appendValues(o, values)
}

func (p *pickle) pushShortTuple(n int) error {
	at := len(p.stack) - n
	if at < p.lastMark() {
		return formatError("a tuple lacks its elements")
	}

	values := p.stack[at:]
	p.stack = p.stack[:at]
	return p.pushTuple(values)
}

func (p *pickle) executeMemoOperation(op byte) error {
	size := 1
	if op == opLongBinPut || op == opLongBinGet {
		size = 4
	}

	number, err := p.readUint(size)
	if err != nil {
		return err
	}

	if op == opBinPut || op == opLongBinPut {
		return p.storeInMemo(number)
	}

	if number >= uint64(len(p.memo)) {
		return formatError("it refers to value %d, which it has not stored", number)
	}

	return p.push(p.memo[number])
}

// maxMemoGap limits the gaps between the numbers under which a pickle stores values. A large number
// would otherwise allocate much memory. Real picklers leave no gaps.
const maxMemoGap = 1 << 16

func (p *pickle) storeInMemo(number uint64) error {
	if len(p.stack) <= p.lastMark() {
		return formatError("it stores a value that it does not have")
	}

	if number > uint64(len(p.memo))+maxMemoGap {
		return formatError("it stores a value under number %d after only %d others", number,
			len(p.memo))
	}

	for uint64(len(p.memo)) <= number {
		p.memo = append(p.memo, 0)
		p.doc.memoryBytes += 8
	}

	p.memo[number] = p.stack[len(p.stack)-1]
	return nil
}

// executeScalarOperation executes an operation that does not concern containers.
func (p *pickle) executeScalarOperation(op byte) error {
	switch op {
	case opNone:
		return p.push(0)
	case opNewTrue, opNewFalse:
		return p.push(boolValue(op == opNewTrue))
	case opBinInt, opBinInt1, opBinInt2:
		return p.pushInt(op)
	case opLong1, opLong4:
		return p.pushLong(op)
	case opBinFloat:
		b, err := p.readBytes(8)
		if err != nil {
			return err
		}

		return p.push(floatValue(math.Float64frombits(binary.BigEndian.Uint64(b))))
	case opProto:
		version, err := p.readByte()
		if err == nil && version > maxProtocol {
			err = formatError("it has pickle protocol %d, newer than %d", version, maxProtocol)
		}

		return err
	case opFrame:
		_, err := p.readUint(8)
		return err
	}

	return p.pushText(op)
}

func (p *pickle) pushInt(op byte) error {
	size := map[byte]int{opBinInt: 4, opBinInt1: 1, opBinInt2: 2}[op]
	n, err := p.readUint(size)
	if err != nil {
		return err
	}

	if op == opBinInt {
		return p.push(intValue(int64(int32(n))))
	}

	return p.push(intValue(int64(n)))
}

// pushLong reads a little-endian integer of any length.
func (p *pickle) pushLong(op byte) error {
	size := 1
	if op == opLong4 {
		size = 4
	}

	n, err := p.readUint(size)
	if err != nil {
		return err
	}

	b, err := p.readBytes(n)
	if err != nil {
		return err
	}

	if len(b) > 8 {
		return p.push(makeValue(tagUnsupported, 0))
	}

	var word [8]byte
	copy(word[:], b)
	shift := 64 - 8*len(b)
	if len(b) == 0 {
		return p.push(intValue(0))
	}

	return p.push(intValue(int64(binary.LittleEndian.Uint64(word[:])<<shift) >> shift))
}

// lengthSizes contains the size of the length field of each operation that pushes a string or
// bytes.
var lengthSizes = map[byte]int{
	opShortBinUnicode: 1, opBinUnicode: 4, opBinUnicode8: 8, opShortBinString: 1, opBinString: 4,
	opShortBinBytes: 1, opBinBytes: 4, opBinBytes8: 8, opByteArray8: 8,
}

func (p *pickle) pushText(op byte) error {
	size, ok := lengthSizes[op]
	if !ok {
		if name := forbiddenOperations[op]; name != "" {
			return formatError("byte %d is the operation %s, which refers to code; only plain data is read",
				p.offset-1, name)
		}

		return formatError("byte %d (0x%02x) is not an operation on plain data", p.offset-1, op)
	}

	n, err := p.readUint(size)
	if err != nil {
		return err
	}

	b, err := p.readBytes(n)
	if err != nil {
		return err
	}

	if op == opShortBinBytes || op == opBinBytes || op == opBinBytes8 || op == opByteArray8 {
		return p.push(makeValue(tagUnsupported, 0))
	}

	v, err := p.doc.findOrAddString(b)
	if err != nil {
		return err
	}

	return p.push(v)
}
