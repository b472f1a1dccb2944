package difftest

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"strings"
)

// PyDict represents a Python dict as a list of pairs.
type PyDict []Pair

// Pair holds a key and a value. The value is nil, an int, int64, float64, bool or string, or a
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
	p.write('.')
	return p.out
}

// The opcodes of pickles that are not printable, as in Python's module pickle.
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
	memoNumbers map[string]int // numbers of strings in the memo
	memoLength  int            // number of values in the memo
}

func (p *pickler) write(b ...byte) { p.out = append(p.out, b...) }

// addToMemo adds the last value to the memo, the pickle's table of values for later use.
func (p *pickler) addToMemo() {
	switch {
	case p.protocol >= 4:
		p.write(opMemoize)
	case p.memoLength < 256:
		p.write('q', byte(p.memoLength))
	default:
		p.write('r')
		p.out = binary.LittleEndian.AppendUint32(p.out, uint32(p.memoLength))
	}
	p.memoLength++
}

func (p *pickler) writeValue(v any) {
	switch v := v.(type) {
	case nil:
		p.write('N')
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
		p.write('G')
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
		p.write('K', byte(n))
	case n >= 0 && n < 65536:
		p.write('M', byte(n), byte(n>>8))
	case n == int64(int32(n)):
		p.write('J')
		p.out = binary.LittleEndian.AppendUint32(p.out, uint32(n))
	default:
		const byteCount = 8
		p.write(opLong, byteCount)
		p.out = binary.LittleEndian.AppendUint64(p.out, uint64(n))
	}
}

// writeString writes a string or, if the memo contains it, its number in the memo.
func (p *pickler) writeString(s string) {
	if number, ok := p.memoNumbers[s]; ok {
		if number < 256 {
			p.write('h', byte(number))
		} else {
			p.write('j')
			p.out = binary.LittleEndian.AppendUint32(p.out, uint32(number))
		}
		return
	}
	if p.protocol >= 4 && len(s) < 256 {
		p.write(opShortString, byte(len(s)))
	} else {
		p.write('X')
		p.out = binary.LittleEndian.AppendUint32(p.out, uint32(len(s)))
	}
	p.out = append(p.out, s...)
	p.memoNumbers[s] = p.memoLength
	p.addToMemo()
}

func (p *pickler) writeTuple(v PyTuple) {
	opcodes := []byte{1: opTuple1, 2: opTuple2, 3: opTuple3} // by length
	hasOpcode := len(v) >= 1 && len(v) <= 3
	if !hasOpcode {
		p.write('(')
	}
	for _, item := range v {
		p.writeValue(item)
	}
	if hasOpcode {
		p.write(opcodes[len(v)])
	} else {
		p.write('t')
	}
	p.addToMemo()
}

// maxBatchItems returns the maximum number of items that one operation adds to a list or dict.
func (p *pickler) maxBatchItems() int {
	if p.protocol == 2 {
		return math.MaxInt
	}
	return 1000
}

func (p *pickler) writeList(v PyList) {
	p.write(']')
	p.addToMemo()
	for len(v) > 0 {
		n := min(len(v), p.maxBatchItems())
		if n == 1 {
			p.writeValue(v[0])
			p.write('a')
		} else {
			p.write('(')
			for _, item := range v[:n] {
				p.writeValue(item)
			}
			p.write('e')
		}
		v = v[n:]
	}
}

func (p *pickler) writeDict(v PyDict) {
	p.write('}')
	p.addToMemo()
	for len(v) > 0 {
		n := min(len(v), p.maxBatchItems())
		if n > 1 {
			p.write('(')
		}
		for _, pair := range v[:n] {
			p.writeString(pair.Key)
			p.writeValue(pair.Value)
		}
		if n > 1 {
			p.write('u')
		} else {
			p.write('s')
		}
		v = v[n:]
	}
}
