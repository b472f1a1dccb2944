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

// EncodeJSON encodes a value as JSON.
func EncodeJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// MarshalJSON implements json.Marshaler.
func (d PyDict) MarshalJSON() ([]byte, error) {
	parts := make([]string, len(d))
	for i, p := range d {
		parts[i] = string(EncodeJSON(p.Key)) + ":" + string(EncodeJSON(p.Value))
	}
	return []byte("{" + strings.Join(parts, ",") + "}"), nil
}

// Pickle encodes a value as a pickle. Protocols 3 to 5 give the operations of Python's pickler, and
// protocol 2 those of PyTorch's C++ pickler.
func Pickle(v any, protocol int) []byte {
	p := &pickler{protocol: protocol, memoNumbers: map[string]int{}}
	p.write(0x80, byte(protocol))
	p.writeValue(v)
	p.write('.')
	return p.out
}

type pickler struct {
	out         []byte
	protocol    int
	memoNumbers map[string]int // numbers of strings in the memo
	memoLength  int            // number of values in the memo
}

func (p *pickler) write(b ...byte) { p.out = append(p.out, b...) }

// addToMemo adds the last value to the memo, the pickle's table of values for later use.
func (p *pickler) addToMemo() {
	switch {
	case p.protocol >= 4:
		p.write(0x94)
	case p.memoLength < 256:
		p.write('q', byte(p.memoLength))
	default:
		p.out = binary.LittleEndian.AppendUint32(append(p.out, 'r'), uint32(p.memoLength))
	}
	p.memoLength++
}

func (p *pickler) writeValue(v any) {
	switch v := v.(type) {
	case nil:
		p.write('N')
	case bool:
		if v {
			p.write(0x88)
		} else {
			p.write(0x89)
		}
	case int:
		p.writeInteger(int64(v))
	case int64:
		p.writeInteger(v)
	case float64:
		p.out = binary.BigEndian.AppendUint64(append(p.out, 'G'), math.Float64bits(v))
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
		p.out = binary.LittleEndian.AppendUint32(append(p.out, 'J'), uint32(n))
	default:
		p.out = binary.LittleEndian.AppendUint64(append(p.out, 0x8a, 8), uint64(n))
	}
}

func (p *pickler) writeString(s string) {
	if number, ok := p.memoNumbers[s]; ok {
		if number < 256 {
			p.write('h', byte(number))
		} else {
			p.out = binary.LittleEndian.AppendUint32(append(p.out, 'j'), uint32(number))
		}
		return
	}
	if p.protocol >= 4 && len(s) < 256 {
		p.write(0x8c, byte(len(s)))
	} else {
		p.out = binary.LittleEndian.AppendUint32(append(p.out, 'X'), uint32(len(s)))
	}
	p.out = append(p.out, s...)
	p.memoNumbers[s] = p.memoLength
	p.addToMemo()
}

func (p *pickler) writeTuple(v PyTuple) {
	if len(v) > 3 || len(v) == 0 {
		p.write('(')
	}
	for _, item := range v {
		p.writeValue(item)
	}
	p.write([]byte{'t', 0x85, 0x86, 0x87, 't'}[min(len(v), 4)])
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
