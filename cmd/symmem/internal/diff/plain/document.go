// Package plain reads dicts, lists, tuples, strings, numbers, Booleans and None from pickles and
// JSON. It never executes code: a pickle that refers to a class or function is an error.
//
// PyTorch's files can contain gigabytes, nearly all in a few lists. Decode passes the elements of
// these lists to the caller one at a time, and then drops them.
package plain

import (
	"errors"
	"fmt"
	"math"
)

// ErrFormat is wrapped by errors about a file's contents.
var ErrFormat = errors.New("unreadable file")

// formatError returns an error that wraps ErrFormat. In the text, "it" is the file.
func formatError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrFormat, fmt.Sprintf(format, args...))
}

// Value refers to a value in a Document. The zero Value is None. A Value is an integer, because
// millions of pointers would slow down the garbage collector.
type Value uint64

// typeTag is the type of a Value. It occupies the low bits of the Value. The other bits are the
// payload, whose meaning depends on the type.
type typeTag uint64

const (
	tagNone        typeTag = iota
	tagBool                // payload: 0 or 1
	tagInt                 // payload: an integer of at most 60 bits
	tagFloat               // payload: a float64 without its low four bits
	tagString              // payload: index in Document.strings
	tagObject              // payload: number of an object in Document.objects
	tagUnsupported         // bytes, or an integer of more than 64 bits; no payload
	tagRoundedInt          // payload: an integer of 61 to 64 bits without its low four bits

	tagBits = 4 // number of low bits that hold the tag
)

func (v Value) tag() typeTag { return typeTag(v & (1<<tagBits - 1)) }

// index returns the payload of a string or object.
func (v Value) index() int { return int(v >> tagBits) }

func makeValue(t typeTag, payload uint64) Value { return Value(payload<<tagBits | uint64(t)) }

// intValue returns an integer as a Value of type tagInt or, if it does not fit, tagRoundedInt.
func intValue(n int64) Value {
	v := makeValue(tagInt, uint64(n))
	if fits := int64(v)>>tagBits == n; fits {
		return v
	}

	return makeValue(tagRoundedInt, uint64(n)>>tagBits)
}

// floatValue drops the low four bits of the mantissa to make room for the tag.
func floatValue(f float64) Value {
	return makeValue(tagFloat, math.Float64bits(f)>>tagBits)
}

func boolValue(b bool) Value {
	if b {
		return makeValue(tagBool, 1)
	}

	return makeValue(tagBool, 0)
}

// IsNone reports whether v is None.
func (v Value) IsNone() bool { return v.tag() == tagNone }

// Int returns v if it is an integer of at most 60 bits, or a float that is a whole number below
// 2^53. For other values, it returns false.
func (v Value) Int() (int64, bool) {
	if v.tag() == tagFloat {
		f := math.Float64frombits(uint64(v) &^ (1<<tagBits - 1))
		return int64(f), f == math.Trunc(f) && math.Abs(f) < 1<<53
	}

	if v.tag() != tagInt {
		return 0, false
	}

	return int64(v) >> tagBits, true
}

// RoundedInt is like Int, but also returns integers of 61 to 64 bits, whose low four bits it
// replaces with zeros.
func (v Value) RoundedInt() (int64, bool) {
	if v.tag() == tagRoundedInt {
		return int64(uint64(v) &^ (1<<tagBits - 1)), true
	}

	return v.Int()
}

// Bool reports whether v is Python's True.
func (v Value) Bool() bool { return v == boolValue(true) }

type containerKind uint8

const (
	listKind containerKind = iota
	tupleKind
	dictKind
)

// object holds a list, a tuple or a dict. The elements of a streamed list are not stored.
type object struct {
	items []Value // the elements, or the keys and values of a dict in turn
	// label is the label of ReplaceWithLabel plus 1, or 0 without a label. For a streamed list of
	// lists, it is the number of inner lists so far. For an inner list, it is its index plus 1.
	label     int32
	kind      containerKind
	listDepth int8 // for a streamed list: number of levels down to the elements; otherwise 0
	listIndex int8 // for a streamed list: index in Options.StreamedLists
	isDropped bool // whether dropItems has removed the items
}

// Document holds the strings and objects to which Values refer. It is not safe for concurrent use.
type Document struct {
	strings       []string
	stringIndexes map[string]uint32 // index of each string in strings
	objects       [][]object        // chunks of up to 1<<objectChunkBits objects
	unusedSlices  [][]Value         // empty slices of dropped objects, for reuse
	memoryBytes   int64             // estimate of the memory in use
}

const (
	objectChunkBits = 10
	maxMemoryBytes  = 5 << 29 // limit of Document.memoryBytes
	maxUnusedSlices = 4096    // limit of len(Document.unusedSlices)
)

func (d *Document) object(v Value) *object {
	i := v.index()
	return &d.objects[i>>objectChunkBits][i&(1<<objectChunkBits-1)]
}

// addMemory adds to d.memoryBytes, and returns an error if the sum exceeds maxMemoryBytes.
func (d *Document) addMemory(bytes int) error {
	d.memoryBytes += int64(bytes)
	if d.memoryBytes > maxMemoryBytes {
		return formatError("its contents need more than %d MiB of memory", maxMemoryBytes>>20)
	}

	return nil
}

func (d *Document) newObject(kind containerKind) Value {
	count := len(d.objects)
	if count == 0 || len(d.objects[count-1]) == 1<<objectChunkBits {
		d.objects = append(d.objects, make([]object, 0, 1<<objectChunkBits))
		count++
	}

	chunk := &d.objects[count-1]
	*chunk = append(*chunk, object{kind: kind})
	d.memoryBytes += 40 // size of an object
	return makeValue(tagObject, uint64(count-1)<<objectChunkBits|uint64(len(*chunk)-1))
}

// dropItems removes the items of an object to save memory.
func (d *Document) dropItems(o *object) {
	if cap(o.items) > 0 && len(d.unusedSlices) < maxUnusedSlices {
		d.unusedSlices = append(d.unusedSlices, o.items[:0])
	}

	d.memoryBytes -= int64(8 * len(o.items))
	o.items, o.isDropped = nil, true
}

func (d *Document) appendItems(o *object, items []Value) error {
	if o.items == nil && len(d.unusedSlices) > 0 {
		last := len(d.unusedSlices) - 1
		o.items = d.unusedSlices[last]
		d.unusedSlices = d.unusedSlices[:last]
	}

	o.items = append(o.items, items...)
	return d.addMemory(8 * len(items))
}

// StringValue returns the Value of a string. Equal strings have the same Value.
func (d *Document) StringValue(s string) Value {
	v, _ := d.findOrAddString([]byte(s)) // ignore the limits, which are for the contents of files
	return v
}

// findOrAddString returns the Value of a string, which it adds to the Document if necessary. It
// returns an error if the Document exceeds a limit.
func (d *Document) findOrAddString(s []byte) (Value, error) {
	if i, ok := d.stringIndexes[string(s)]; ok {
		return makeValue(tagString, uint64(i)), nil
	}

	if len(d.strings) == math.MaxUint32 {
		return 0, formatError("it has too many strings")
	}

	if d.stringIndexes == nil {
		d.stringIndexes = map[string]uint32{}
	}

	text := string(s)
	i := uint32(len(d.strings))
	d.stringIndexes[text] = i
	d.strings = append(d.strings, text)
	const stringOverhead = 72 // estimate of the bytes in strings and stringIndexes
	return makeValue(tagString, uint64(i)), d.addMemory(len(text) + stringOverhead)
}

// StringOf returns the string to which v refers, or false if v is not a string.
func (d *Document) StringOf(v Value) (string, bool) {
	if v.tag() != tagString {
		return "", false
	}

	return d.strings[v.index()], true
}

// Get returns the value of a key in v. It returns None if v lacks the key or is not a dict. The
// key must be a result of StringValue.
func (d *Document) Get(v, key Value) Value {
	if !d.IsDict(v) {
		return 0
	}

	items := d.object(v).items
	for i := len(items) - 2; i >= 0; i -= 2 { // as in Python, the last of several equal keys counts
		if items[i] == key {
			return items[i+1]
		}
	}

	return 0
}

// Items returns the elements of a list or tuple, or the keys and values of a dict in turn. The
// caller must not change them.
func (d *Document) Items(v Value) []Value {
	if v.tag() != tagObject {
		return nil
	}

	return d.object(v).items
}

// IsDict reports whether v is a dict.
func (d *Document) IsDict(v Value) bool {
	return v.tag() == tagObject && d.object(v).kind == dictKind
}

// IsList reports whether v is a list or tuple.
func (d *Document) IsList(v Value) bool {
	return v.tag() == tagObject && d.object(v).kind != dictKind
}

// Label returns the label that ReplaceWithLabel has assigned to v, or false if v has no label.
func (d *Document) Label(v Value) (int32, bool) {
	if v.tag() != tagObject {
		return 0, false
	}

	o := d.object(v)
	return o.label - 1, o.label > 0 && o.listDepth == 0
}

// ReplaceWithLabel replaces the items of an object with a label, so that the caller need not
// convert the object again when the file refers to it again.
func (d *Document) ReplaceWithLabel(v Value, label int32) {
	if v.tag() == tagObject {
		o := d.object(v)
		d.dropItems(o)
		o.label = label + 1
	}
}
