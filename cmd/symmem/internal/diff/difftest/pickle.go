package difftest

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// A pickle is Python's encoding of a value: a program for a machine with a stack of values. For
// example, these operations encode {"a": [1, 2]}:
//
//	PROTO 2                 the version of the format
//	EMPTY_DICT, BINPUT 0    push a dict, and add it to the memo
//	BINUNICODE "a"          push a string
//	BINPUT 1                add it to the memo
//	EMPTY_LIST, BINPUT 2    push a list, and add it to the memo
//	MARK                    mark the top of the stack
//	BININT1 1, BININT1 2    push the numbers 1 and 2
//	APPENDS                 move the values above the mark into the list below it
//	SETITEM                 move the string and the list into the dict below them
//	STOP
//
// The memo is a table of values, numbered from 0. If the string "a" occurs again, the operation
// BINGET 1 pushes it from the memo.

// PyDict represents a Python dict as a list of pairs, so that the order of the keys is kept.
type PyDict []Pair

// Pair holds a key and a value of a PyDict. The value is nil, a bool, int, int64, float64, string,
// PyDict, PyList or PyTuple.
type Pair struct {
	Key   string
	Value any
}

// PyList represents a Python list.
type PyList []any

// PyTuple represents a Python tuple. JSON encodes it as a list.
type PyTuple []any

// EncodeJSON encodes a value as JSON. It panics if the value has an unsupported type.
func EncodeJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}

	return b
}

// MarshalJSON implements json.Marshaler. It encodes the dict as an object with the keys in order.
func (d PyDict) MarshalJSON() ([]byte, error) {
	parts := make([]string, len(d))
	for i, p := range d {
		parts[i] = string(EncodeJSON(p.Key)) + ":" + string(EncodeJSON(p.Value))
	}

	return []byte("{" + strings.Join(parts, ",") + "}"), nil
}

// Pickle encodes a value as a pickle of protocol 2 to 5. For protocol 2, it uses the operations of
// PyTorch's C++ pickler. For the other protocols, it uses those of Python's pickler.
func Pickle(v any, protocol int) []byte {
	p := &pickler{protocol: protocol, memoNumbers: map[string]int{}}
	p.write(opProto, byte(protocol))
	p.writeValue(v)
	p.write(opStop)
	return p.out
}

// The opcodes, with the names that they have in Python's module pickle.
const (
	opProto           = 0x80
	opStop            = '.'
	opNone            = 'N'
	opNewTrue         = 0x88
	opNewFalse        = 0x89
	opBinInt1         = 'K' // followed by 1 byte
	opBinInt2         = 'M' // followed by 2 bytes
	opBinInt          = 'J' // followed by 4 bytes
	opLong1           = 0x8a
	opBinFloat        = 'G'
	opShortBinUnicode = 0x8c // string of up to 255 bytes
	opBinUnicode      = 'X'
	opMark            = '('
	opTuple           = 't' // of the values above the mark
	opTuple1          = 0x85
	opTuple2          = 0x86
	opTuple3          = 0x87
	opEmptyList       = ']'
	opAppend          = 'a' // of one value
	opAppends         = 'e' // of the values above the mark
	opEmptyDict       = '}'
	opSetItem         = 's' // of one key and value
	opSetItems        = 'u' // of the keys and values above the mark
	opMemoize         = 0x94
	opBinPut          = 'q' // followed by 1 byte
	opLongBinPut      = 'r' // followed by 4 bytes
	opBinGet          = 'h' // followed by 1 byte
	opLongBinGet      = 'j' // followed by 4 bytes
)

const (
	maxUint8  = 1<<8 - 1
	maxUint16 = 1<<16 - 1
)

// pickler writes the operations for a value.
type pickler struct {
	out         []byte // the pickle so far
	protocol    int
	memoNumbers map[string]int // number of each string in the memo
	memoLength  int            // number of values in the memo
}

func (p *pickler) write(b ...byte) { p.out = append(p.out, b...) }

func (p *pickler) writeUint32(n uint32) { p.out = binary.LittleEndian.AppendUint32(p.out, n) }

// addToMemo adds the value at the top of the stack to the memo.
func (p *pickler) addToMemo() {
	number := p.memoLength
	switch {
	case p.protocol >= 4:
		p.write(opMemoize) // implies the number
	case number <= maxUint8:
		p.write(opBinPut, byte(number))
	default:
		p.write(opLongBinPut)
		p.writeUint32(uint32(number))
	}

	p.memoLength++
}

// pushFromMemo pushes the value with a number from the memo.
func (p *pickler) pushFromMemo(number int) {
	if number <= maxUint8 {
		p.write(opBinGet, byte(number))
		return
	}

	p.write(opLongBinGet)
	p.writeUint32(uint32(number))
}

func (p *pickler) writeValue(v any) {
	switch v := v.(type) {
	case nil:
		p.write(opNone)
	case bool:
		if v {
			p.write(opNewTrue)
		} else {
			p.write(opNewFalse)
		}
	case int:
		p.writeInteger(int64(v))
	case int64:
		p.writeInteger(v)
	case float64:
		p.write(opBinFloat)
		p.out = binary.BigEndian.AppendUint64(p.out, math.Float64bits(v))
	case string:
		p.writeString(v)
	case PyTuple:
		p.writeTuple(v)
	case PyList:
		p.writeList(v)
	case PyDict:
		p.writeDict(v)
	default:
		panic(fmt.Sprintf("cannot pickle a value of type %T", v))
	}
}

// writeInteger writes an integer in 1, 2, 4 or 8 bytes, depending on its value.
func (p *pickler) writeInteger(n int64) {
	switch {
	case n >= 0 && n <= maxUint8:
		p.write(opBinInt1, byte(n))
	case n >= 0 && n <= maxUint16:
		p.write(opBinInt2, byte(n), byte(n>>8))
	case n == int64(int32(n)): // it fits into an int32
		p.write(opBinInt)
		p.writeUint32(uint32(n))
	default:
		const byteCount = 8
		p.write(opLong1, byteCount)
		p.out = binary.LittleEndian.AppendUint64(p.out, uint64(n))
	}
}

func (p *pickler) writeString(s string) {
	if number, isInMemo := p.memoNumbers[s]; isInMemo {
		p.pushFromMemo(number)
		return
	}

	if p.protocol >= 4 && len(s) <= maxUint8 {
		p.write(opShortBinUnicode, byte(len(s)))
	} else {
		p.write(opBinUnicode)
		p.writeUint32(uint32(len(s)))
	}

	p.out = append(p.out, s...)
	p.memoNumbers[s] = p.memoLength
	p.addToMemo()
}

// shortTupleOpcodes holds the opcodes for short tuples, by length. They need no mark.
var shortTupleOpcodes = map[int]byte{1: opTuple1, 2: opTuple2, 3: opTuple3}

func (p *pickler) writeTuple(tuple PyTuple) {
	opcode, isShort := shortTupleOpcodes[len(tuple)]
	if !isShort {
		opcode = opTuple
		p.write(opMark)
	}

	for _, item := range tuple {
		p.writeValue(item)
	}

	p.write(opcode)
	p.addToMemo()
}

// maxBatchItems returns the maximum number of items that one operation adds to a list or dict.
func (p *pickler) maxBatchItems() int {
	isPyTorch := p.protocol == 2
	if isPyTorch { // its pickler adds all items at once
		return math.MaxInt
	}

	return 1000 // as in Python
}

func (p *pickler) writeList(list PyList) {
	p.write(opEmptyList)
	p.addToMemo()
	for batch := range slices.Chunk(list, p.maxBatchItems()) {
		if len(batch) == 1 {
			p.writeValue(batch[0])
			p.write(opAppend)
			continue
		}

		p.write(opMark)
		for _, item := range batch {
			p.writeValue(item)
		}

		p.write(opAppends)
	}
}

func (p *pickler) writeDict(dict PyDict) {
	p.write(opEmptyDict)
	p.addToMemo()
	for batch := range slices.Chunk(dict, p.maxBatchItems()) {
		if len(batch) == 1 {
			p.writePair(batch[0])
			p.write(opSetItem)
			continue
		}

		p.write(opMark)
		for _, pair := range batch {
			p.writePair(pair)
		}

		p.write(opSetItems)
	}
}

func (p *pickler) writePair(pair Pair) {
	p.writeString(pair.Key)
	p.writeValue(pair.Value)
}
