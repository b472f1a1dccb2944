package plain

import (
	"errors"
	"fmt"
	"io"
)

// Options selects the lists whose elements Decode passes to OnElement.
type Options struct {
	StreamedLists []StreamedList
	// OnElement is called with each element of a streamed list. list is the index of the list in
	// StreamedLists. In a list of lists, innerList is the index of the inner list. Otherwise, it is
	// 0. The element is valid until OnElement returns.
	OnElement func(d *Document, list, innerList int, element Value) error
}

// StreamedList names a list that Decode does not store: it passes each element to
// Options.OnElement and then drops the element.
type StreamedList struct {
	Key    string // key of the list in the top-level dict, or "" if the list is the top-level value
	Levels int    // 1 for a list of elements, 2 for a list of lists of elements
}

// Decode reads a pickle of protocol 2 to 5, or JSON. It returns the top-level value, and the
// Document that holds the strings and objects of this value. Streamed lists are empty in it. Errors
// about the contents wrap ErrFormat.
func Decode(r io.Reader, o Options) (*Document, Value, error) {
	in := newInput(r)
	first, err := in.peek()
	if errors.Is(err, io.EOF) {
		return nil, 0, formatError("it is empty")
	}

	if err != nil {
		return nil, 0, fmt.Errorf("reading the file: %w", err)
	}

	m := &machine{doc: &Document{}, options: o}
	if first == opProto { // all pickles of protocol 2 and above begin with this operation
		p := &pickle{machine: m, input: in}
		err = p.run()
	} else {
		err = m.readJSON(in)
	}

	if err != nil {
		return nil, 0, err
	}

	if len(m.stack) != 1 {
		return nil, 0, formatError("it ends with %d values instead of one", len(m.stack))
	}

	if len(m.marks) != 0 {
		return nil, 0, formatError("it ends inside a list, tuple or dict")
	}

	return m.doc, m.stack[0], nil
}

// machine executes the operations of pickles, which work on a stack of values. For example, these
// operations produce the list [1, 2]: push an empty list, add a mark, push 1, push 2, and move the
// values above the mark into the list below it. readJSON executes the same operations.
type machine struct {
	doc     *Document
	options Options
	stack   []Value
	marks   []int   // positions in the stack at which the items of lists, tuples and dicts begin
	memo    []Value // values that later operations of a pickle can push again
}

// Limits, so that a malicious file cannot use too much memory.
const (
	maxStackValues = 1 << 27
	maxMarks       = 1000
)

func (m *machine) push(v Value) error {
	m.stack = append(m.stack, v)
	if len(m.stack) > maxStackValues {
		return formatError("it nests too deeply or has a list of more than %d elements",
			maxStackValues)
	}

	return nil
}

// addMark adds a mark above the top of the stack.
func (m *machine) addMark() error {
	m.marks = append(m.marks, len(m.stack))
	if len(m.marks) > maxMarks {
		return formatError("it nests more than %d levels deep", maxMarks)
	}

	return nil
}

// lastMark returns the position of the first value above the last mark. Without a mark, it returns
// the bottom of the stack.
func (m *machine) lastMark() int {
	if len(m.marks) == 0 {
		return 0
	}

	return m.marks[len(m.marks)-1]
}

// pop pops a value. It returns an error if there is no value above the last mark.
func (m *machine) pop() (Value, error) {
	top := len(m.stack) - 1
	if top < m.lastMark() {
		return 0, formatError("an operation has no value to work on")
	}

	v := m.stack[top]
	m.stack = m.stack[:top]
	return v, nil
}

// popMark removes the last mark and returns the values above it, which it pops. The result is
// valid until the next push.
func (m *machine) popMark() ([]Value, error) {
	if len(m.marks) == 0 {
		return nil, formatError("an operation has no mark at which its values begin")
	}

	begin := m.lastMark()
	m.marks = m.marks[:len(m.marks)-1]
	values := m.stack[begin:]
	m.stack = m.stack[:begin]
	return values, nil
}

// topContainer returns the container of the given kind (list or dict) at the top of the stack, to
// which the caller adds items.
func (m *machine) topContainer(kind containerKind) (*object, error) {
	top := len(m.stack) - 1
	if top < m.lastMark() || m.stack[top].tag() != tagObject {
		return nil, formatError("an operation has no list or dict to add values to")
	}

	o := m.doc.object(m.stack[top])
	if o.kind != kind {
		return nil, formatError("an operation adds values to a container of the wrong type")
	}

	return o, nil
}

// pushList pushes an empty list. If the list is streamed or is an inner list of a streamed list of
// lists, pushList sets its listDepth (the number of levels down to the elements) and its listIndex
// (the index in StreamedLists).
func (m *machine) pushList() error {
	v := m.doc.newObject(listKind)
	list := m.doc.object(v)
	if outer := m.outerList(); outer != nil {
		list.listDepth = outer.listDepth - 1
		list.listIndex = outer.listIndex
		outer.label++            // counts the inner lists
		list.label = outer.label // index of the inner list plus 1
	} else if key, ok := m.topLevelKey(); ok {
		for i, s := range m.options.StreamedLists {
			if s.Key == key {
				list.listDepth = int8(s.Levels)
				list.listIndex = int8(i)
			}
		}
	}

	return m.push(v)
}

// outerList returns the streamed list of lists to which the next list will be added, or nil. The
// outer list is at the top of the stack or below the last mark.
func (m *machine) outerList() *object {
	n := len(m.stack)
	for _, position := range []int{n - 1, m.lastMark() - 1} {
		if position < 0 || position >= n { // the stack is empty, or there is no mark
			continue
		}

		v := m.stack[position]
		if v.tag() != tagObject {
			continue
		}

		o := m.doc.object(v)
		if o.kind == listKind && o.listDepth > 1 {
			return o
		}
	}

	return nil
}

// topLevelKey returns the key that the next value will have in the top-level dict. If the next
// value will be the top-level value, the key is "". If it will be inside another value, topLevelKey
// returns false.
func (m *machine) topLevelKey() (string, bool) {
	n := len(m.stack)
	if n == 0 {
		return "", true
	}

	if n < 2 || !m.doc.IsDict(m.stack[0]) {
		return "", false
	}

	// A dict is filled in one of two ways. Either each key and its value are pushed directly above
	// the dict, or all keys and values are pushed above a mark.
	isAfterOnlyKey := len(m.marks) == 0 && n == 2
	isMarkAboveDict := len(m.marks) == 1 && m.marks[0] == 1
	hasKeyOnTop := n%2 == 0 // the dict, complete pairs, and a key
	if isAfterOnlyKey || (isMarkAboveDict && hasKeyOnTop) {
		return m.doc.StringOf(m.stack[n-1])
	}

	return "", false
}

// pushDict pushes an empty dict. If the dict is an element of a streamed list, pushDict first
// passes the preceding elements to OnElement, because they are complete. Without this, all elements
// of the list would be on the stack at the same time.
func (m *machine) pushDict() error {
	mark := m.lastMark()
	hasPrecedingItems := mark > 0 && len(m.stack) > mark
	if hasPrecedingItems && m.stack[mark-1].tag() == tagObject {
		container := m.doc.object(m.stack[mark-1])
		if container.listDepth == 1 { // a streamed list, or an inner list of one
			if err := m.passElements(container, m.stack[mark:]); err != nil {
				return err
			}

			m.stack = m.stack[:mark]
		}
	}

	return m.push(m.doc.newObject(dictKind))
}

// passElements calls OnElement with elements of the streamed list o, and then drops the items of
// each element to save memory.
func (m *machine) passElements(o *object, elements []Value) error {
	innerList := max(int(o.label)-1, 0) // label is 0 if o is not an inner list
	for _, v := range elements {
		// An element whose items have been dropped is empty. It must not be passed again.
		if v.tag() == tagObject && m.doc.object(v).isDropped {
			return formatError("a list contains the same element twice")
		}

		if err := m.options.OnElement(m.doc, int(o.listIndex), innerList, v); err != nil {
			return err
		}

		if v.tag() == tagObject {
			m.doc.dropItems(m.doc.object(v))
		}
	}

	return nil
}

// appendValues adds values to the list o or, if o is streamed, passes them to OnElement.
func (m *machine) appendValues(o *object, values []Value) error {
	if o.listDepth == 1 {
		return m.passElements(o, values)
	}

	if o.listDepth > 1 {
		return nil // the elements of the inner lists have already been passed
	}

	return m.doc.appendItems(o, values)
}

// appendToList moves the values above the last mark to the list below it.
func (m *machine) appendToList() error {
	values, err := m.popMark()
	if err != nil {
		return err
	}

	o, err := m.topContainer(listKind)
	if err != nil {
		return err
	}

	return m.appendValues(o, values)
}

// appendToDict moves the values above the last mark, which are keys and values in turn, to the dict
// below it.
func (m *machine) appendToDict() error {
	values, err := m.popMark()
	if err != nil {
		return err
	}

	o, err := m.topContainer(dictKind)
	if err != nil {
		return err
	}

	if len(values)%2 != 0 {
		return formatError("a key has no value")
	}

	return m.doc.appendItems(o, values)
}

// pushTuple pushes a tuple of values, which may be a result of popMark.
func (m *machine) pushTuple(values []Value) error {
	tuple := m.doc.newObject(tupleKind)
	if err := m.doc.appendItems(m.doc.object(tuple), values); err != nil { // copies the values
		return err
	}

	return m.push(tuple)
}
