package plain

import (
	"errors"
	"fmt"
	"io"
)

// Options selects the lists whose elements Decode passes to OnElement.
type Options struct {
	StreamedLists []StreamedList
	// OnElement is called with each element of the list StreamedLists[list]. In a list of lists,
	// innerList is the index of the inner list; otherwise, it is 0. The element is valid until
	// OnElement returns.
	OnElement func(d *Document, list, innerList int, element Value) error
}

// StreamedList names a list that Decode does not store: it passes each element to
// Options.OnElement and then drops the element.
type StreamedList struct {
	Key    string // key of the list in the top-level dict, or "" if the list is the top-level value
	Levels int    // 1 for a list of elements, 2 for a list of lists of elements
}

// Decode reads a pickle of protocol 2 to 5, or JSON. It returns the top-level value, which refers
// to the Document and in which streamed lists are empty. Errors about the contents wrap
// ErrFormat.
func Decode(r io.Reader, o Options) (*Document, Value, error) {
	in := newInput(r)
	first, err := in.peek()
	switch {
	case errors.Is(err, io.EOF):
		return nil, 0, formatError("it is empty")
	case err != nil:
		return nil, 0, fmt.Errorf("reading the file: %w", err)
	}
	m := &machine{doc: &Document{}, options: o}
	if first == opProto {
		err = (&pickle{machine: m, input: in}).run()
	} else {
		err = m.readJSON(in)
	}
	if err != nil {
		return nil, 0, err
	}
	if len(m.stack) != 1 || len(m.marks) != 0 {
		return nil, 0, formatError("it ends with %d values instead of one", len(m.stack))
	}
	return m.doc, m.stack[0], nil
}

// machine executes the operations of pickles, which work on a stack of values. A list or dict is
// pushed empty, then a mark is added and the items are pushed, and finally an operation moves the
// items above the mark into the list or dict. readJSON uses the same operations.
type machine struct {
	doc     *Document
	options Options
	stack   []Value
	marks   []int   // positions in the stack at which the items of lists, tuples and dicts begin
	memo    []Value // values that later operations of a pickle can push again
}

// push pushes a value. It returns an error if the stack is too high, so that a malicious file
// cannot use too much memory.
func (m *machine) push(v Value) error {
	m.stack = append(m.stack, v)
	if len(m.stack) > 1<<27 {
		return formatError("it nests too deeply or has a list of more than %d elements", 1<<27)
	}
	return nil
}

func (m *machine) addMark() error {
	m.marks = append(m.marks, len(m.stack))
	if len(m.marks) > 1000 {
		return formatError("it nests more than 1000 levels deep")
	}
	return nil
}

func (m *machine) lastMark() int {
	if len(m.marks) == 0 {
		return 0
	}
	return m.marks[len(m.marks)-1]
}

// pop pops a value, which must be above the last mark.
func (m *machine) pop() (Value, error) {
	n := len(m.stack) - 1
	if n < m.lastMark() {
		return 0, formatError("an operation has no value to work on")
	}
	v := m.stack[n]
	m.stack = m.stack[:n]
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

// topContainer returns the list or dict at the top of the stack, to which items are to be added.
func (m *machine) topContainer(kind containerKind) (*object, error) {
	n := len(m.stack) - 1
	if n < m.lastMark() || m.stack[n].tag() != tagObject {
		return nil, formatError("an operation has no list or dict to add values to")
	}
	o := m.doc.object(m.stack[n])
	if o.kind != kind {
		return nil, formatError("an operation adds values to a container of the wrong type")
	}
	return o, nil
}

// pushList pushes an empty list. If the list is streamed, pushList sets its listDepth and
// listIndex. For an inner list, it also sets label to the number of the inner list, from 1.
func (m *machine) pushList() error {
	v := m.doc.newObject(listKind)
	o := m.doc.object(v)
	if outer := m.outerList(); outer != nil {
		o.listDepth, o.listIndex = outer.listDepth-1, outer.listIndex
		outer.label++
		o.label = outer.label
	} else if key, ok := m.topLevelKey(); ok {
		for i, s := range m.options.StreamedLists {
			if s.Key == key {
				o.listDepth, o.listIndex = int8(s.Levels), int8(i)
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
		if position < 0 || position >= n || m.stack[position].tag() != tagObject {
			continue
		}
		if o := m.doc.object(m.stack[position]); o.kind == listKind && o.listDepth > 1 {
			return o
		}
	}
	return nil
}

// topLevelKey returns the key that the next value will have in the top-level dict, or "" if the
// next value will be the top-level value. If neither is the case, it returns false.
func (m *machine) topLevelKey() (string, bool) {
	n := len(m.stack)
	if n == 0 {
		return "", true
	}
	if n < 2 || !m.doc.IsDict(m.stack[0]) {
		return "", false
	}
	// The stack holds the dict and one key, or the dict, a mark, and keys and values in turn.
	isAfterKey := len(m.marks) == 0 && n == 2
	isAfterMarkedKey := len(m.marks) == 1 && m.marks[0] == 1 && n%2 == 0
	if isAfterKey || isAfterMarkedKey {
		return m.doc.StringOf(m.stack[n-1])
	}
	return "", false
}

// pushDict pushes an empty dict. If the dict is an element of a streamed list, pushDict first
// passes the preceding elements to OnElement, because they are complete.
func (m *machine) pushDict() error {
	mark := m.lastMark()
	if mark > 0 && len(m.stack) > mark && m.stack[mark-1].tag() == tagObject {
		if o := m.doc.object(m.stack[mark-1]); o.listDepth == 1 {
			if err := m.passElements(o, m.stack[mark:]); err != nil {
				return err
			}
			m.stack = m.stack[:mark]
		}
	}
	return m.push(m.doc.newObject(dictKind))
}

// passElements calls OnElement with elements of the streamed list o, and then drops their items.
func (m *machine) passElements(o *object, elements []Value) error {
	innerList := max(int(o.label)-1, 0) // label is 0 if o is not an inner list
	for _, v := range elements {
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

func (m *machine) pushTuple(values []Value) error {
	v := m.doc.newObject(tupleKind)
	if err := m.doc.appendItems(m.doc.object(v), values); err != nil {
		return err
	}
	return m.push(v)
}
