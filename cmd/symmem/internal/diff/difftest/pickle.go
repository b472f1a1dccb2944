package difftest

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

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
	p.write(opProtocol, byte(protocol))
	p.writeValue(v)
	p.write('.') // STOP
	return p.out
}

// The opcodes that are not printable characters. The comments have the names in Python's module
// pickle. Printable opcodes are written as characters below.
const (
	opProtocol    = 0x80 // PROTO
	opTrue        = 0x88 // NEWTRUE
	opFalse       = 0x89 // NEWFALSE
	opTuple1      = 0x85 // TUPLE1
	opTuple2      = 0x86 // TUPLE2
	opTuple3      = 0x87 // TUPLE3
	opLong        = 0x8a // LONG1
	opShortString = 0x8c // SHORT_BINUNICODE
	opMemoize     = 0x94 // MEMOIZE
)

type pickler struct {
	out         []byte // the pickle so far
	protocol    int
	memoNumbers map[string]int // number of each string in the memo
	memoLength  int            // number of values in the memo
}

func (p *pickler) write(b ...byte) { p.out = append(p.out, b...) }

func (p *pickler) writeUint32(n uint32) { p.out = binary.LittleEndian.AppendUint32(p.out, n) }

// addToMemo adds the last value to the memo. The memo is a table of values, numbered from 0, to
// which the pickle can refer later.
func (p *pickler) addToMemo() {
	switch {
	case p.protocol >= 4:
		p.write(opMemoize)
	case p.memoLength < 256:
		p.write('q', byte(p.memoLength)) // BINPUT
	default:
		p.write('r') // LONG_BINPUT
		p.writeUint32(uint32(p.memoLength))
	}

	p.memoLength++
}

func (p *pickler) writeValue(v any) {
	switch v := v.(type) {
	case nil:
		p.write('N') // NONE
	case bool:
		if v {
			p.write(opTrue)
		} else {
			p.write(opFalse)
		}
	case int:
		p.writeInteger(int64(v))
	case int64:
		p.writeInteger(v)
	case float64:
		p.write('G') // BINFLOAT
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

func (p *pickler) writeInteger(n int64) {
	switch {
	case n >= 0 && n < 256:
		p.write('K', byte(n)) // BININT1
	case n >= 0 && n < 65536:
		p.write('M', byte(n), byte(n>>8)) // BININT2
	case n == int64(int32(n)):
		p.write('J') // BININT
		p.writeUint32(uint32(n))
	default:
		const byteCount = 8
		p.write(opLong, byteCount)
		p.out = binary.LittleEndian.AppendUint64(p.out, uint64(n))
	}
}

// writeString writes a string. If the memo already contains the string, it writes the number there
// instead.
func (p *pickler) writeString(s string) {
	if number, ok := p.memoNumbers[s]; ok {
		p.writeMemoNumber(number)
		return
	}

	if p.protocol >= 4 && len(s) < 256 {
		p.write(opShortString, byte(len(s)))
	} else {
		p.write('X') // BINUNICODE
		p.writeUint32(uint32(len(s)))
	}

	p.out = append(p.out, s...)
	p.memoNumbers[s] = p.memoLength
	p.addToMemo()
}

func (p *pickler) writeMemoNumber(number int) {
	if number < 256 {
		p.write('h', byte(number)) // BINGET
		return
	}

	p.write('j') // LONG_BINGET
	p.writeUint32(uint32(number))
}

// shortTupleOpcodes holds the opcodes that need no mark, by the length of the tuple.
var shortTupleOpcodes = map[int]byte{1: opTuple1, 2: opTuple2, 3: opTuple3}

func (p *pickler) writeTuple(tuple PyTuple) {
	shortOpcode, isShort := shortTupleOpcodes[len(tuple)]
	if !isShort {
		p.write('(') // MARK
	}

	for _, item := range tuple {
		p.writeValue(item)
	}

	if isShort {
		p.write(shortOpcode)
	} else {
		p.write('t') // TUPLE, of the values above the mark
	}

	p.addToMemo()
}

// maxBatchItems returns the maximum number of items that one operation adds to a list or dict.
func (p *pickler) maxBatchItems() int {
	if p.protocol == 2 { // PyTorch's pickler does not split lists and dicts
		return math.MaxInt
	}

	return 1000 // as in Python
}

func (p *pickler) writeList(list PyList) {
	p.write(']') // EMPTY_LIST
	p.addToMemo()
	for batch := range slices.Chunk(list, p.maxBatchItems()) {
		if len(batch) == 1 {
			p.writeValue(batch[0])
			p.write('a') // APPEND
			continue
		}

		p.write('(') // MARK
		for _, item := range batch {
			p.writeValue(item)
		}

		p.write('e') // APPENDS
	}
}

func (p *pickler) writeDict(dict PyDict) {
	p.write('}') // EMPTY_DICT
	p.addToMemo()
	for batch := range slices.Chunk(dict, p.maxBatchItems()) {
		if len(batch) > 1 {
			p.write('(') // MARK
		}

		for _, pair := range batch {
			p.writeString(pair.Key)
			p.writeValue(pair.Value)
		}

		if len(batch) > 1 {
			p.write('u') // SETITEMS
		} else {
			p.write('s') // SETITEM
		}
	}
}
