package cuda

import (
	"errors"

	"symmem/internal/dl"
)

// table has the functions of libcuda, and calls them.
type table struct {
	library *dl.Library
	symbols []dl.Symbol // of names
	// first is made right before each call; the zero value is none.
	first dl.Step
}

// find fills the table of functions, and reports all that are missing.
func (t *table) find() error {
	var all []error
	for f, name := range names {
		symbol, ok := t.library.Find(name)
		if !ok && f < int(optional) {
			all = append(all, &MissingError{name, t.library.Path()})
		}
		t.symbols = append(t.symbols, symbol)
	}
	return errors.Join(all...)
}

// call calls a function and turns its result into an error. It does not allocate unless the
// function refuses.
func (t *table) call(f function, args ...uintptr) error {
	if status, ok := t.symbols[f].StatusAfter(&t.first, args...); !ok || Code(status) != Success {
		return t.failure(f, status, ok)
	}
	return nil
}

// made calls a function that leaves a value at the address that is its first argument.
func made[T any](t *table, f function, others ...uintptr) (T, error) {
	var none T
	cell := dl.NewCell(none)
	args := append(make([]uintptr, 0, 8), cell.Address())
	err := t.call(f, append(args, others...)...)
	return cell.Take(), err
}

// failure returns the error of a call, or of the step before it if that has failed.
func (t *table) failure(f function, status int32, ok bool) error {
	if !ok {
		return t.first.Refused(status)
	}
	return t.newError(f, Code(status))
}

// query calls a function whose answer "not ready" is no error.
func (t *table) query(f function, handle uintptr) (done bool, err error) {
	status, ok := t.symbols[f].StatusAfter(&t.first, handle)
	switch {
	case ok && Code(status) == Success:
		return true, nil
	case ok && Code(status) == ErrNotReady:
		return false, nil
	default:
		return false, t.failure(f, status, ok)
	}
}

// newError asks the driver for the name of a result. The functions for that work without a context.
func (t *table) newError(f function, code Code) error {
	return &Error{
		Call: names[f], Code: code,
		Name: t.describe(getErrorName, code), Text: t.describe(getErrorString, code),
	}
}

// describe returns a text of the driver about a result, or "".
func (t *table) describe(f function, code Code) string {
	text := dl.NewCell(uintptr(0))
	result := Code(t.symbols[f].Call(uintptr(code), text.Address()))
	at := text.Take()
	if result != Success {
		return ""
	}
	return dl.GoString(at)
}
