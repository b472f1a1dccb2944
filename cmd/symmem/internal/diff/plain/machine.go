package plain

import (
	"errors"
	"fmt"
	"io"
)

// Options selects the lists whose elements Decode passes to OnElement.
type Options struct {
	StreamedLists []StreamedList
	// OnElement is called with each element of StreamedLists[list]. In a list of lists, innerList
	// is the index of the inner list. The element is valid until OnElement returns.
	OnElement func(d *Document, list, innerList int, element Value) error
}

// StreamedList describes a list whose elements are passed to the caller one at a time.
type StreamedList struct {
	Key    string // in the top-level dict, or "" if the top-level value is the list
	Levels int    // 1 for a list of elements, 2 for a list of lists
}

// Decode reads a pickle of protocol 2 to 5, or JSON, and returns the top-level value, in which
// streamed lists are empty. Errors about the contents wrap ErrFormat.
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

// machine executes the operations of pickles, which work on a stack of values. readJSON uses the
// same operations.
type machine struct {
	doc     *Document
	options Options
	stack   []Value
	marks   []int   // positions in the stack at which the items of lists, tuples and dicts begin
	memo    []Value // values that later operations can refer to
}

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

func (m *machine) pop() (Value, error) {
	n := len(m.stack) - 1
	if n < m.lastMark() {
		return 0, formatError("an operation has no value to work on")
	}
	v := m.stack[n]
	m.stack = m.stack[:n]
	return v, nil
}

// popMark removes the values above the last mark. The result is valid until the next push.
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

// pushList pushes an empty list. If it is one of Options.StreamedLists or in one of them, pushList
// sets its depth.
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

// outerList returns the streamed list that will contain the next list, or nil.
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

// topLevelKey returns the key that the next value will have in the top-level dict, or "" if it will
// be the top-level value. Otherwise, it returns false.
func (m *machine) topLevelKey() (string, bool) {
	n := len(m.stack)
	switch {
	case n == 0:
		return "", true
	case n < 2 || !m.doc.IsDict(m.stack[0]):
		return "", false
	case len(m.marks) == 0 && n == 2 || len(m.marks) == 1 && m.marks[0] == 1 && n%2 == 0:
		return m.doc.StringOf(m.stack[n-1])
	}
	return "", false
}

// pushDict pushes an empty dict. In a streamed list, it first passes the preceding elements to the
// caller, because they are complete.
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

func (m *machine) passElements(o *object, elements []Value) error {
	innerList := max(int(o.label)-1, 0)
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

func (m *machine) appendValues(o *object, values []Value) error {
	if o.listDepth == 1 {
		return m.passElements(o, values)
	}
	if o.listDepth > 1 {
		return nil // the elements of the inner lists have already been passed
	}
	return m.doc.appendItems(o, values)
}

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
