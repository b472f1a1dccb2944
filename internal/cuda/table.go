package cuda

import (
	"errors"

	"symmem/internal/dl"
)

// table calls the functions of libcuda.
type table struct {
	library *dl.Library
	symbols []dl.Symbol // by function
	// first runs right before each call, on the same thread. It may be the zero value.
	first dl.Step
}

// find looks up all functions, and returns an error that lists the missing ones.
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

// call calls a function and converts its result to an error. It does not allocate unless the
// function fails.
func (t *table) call(f function, args ...uintptr) error {
	if status, ok := t.symbols[f].StatusAfter(&t.first, args...); !ok || Code(status) != Success {
		return t.failure(f, status, ok)
	}
	return nil
}

// made calls a function that writes a value to the address in its first argument, and returns the
// value.
func made[T any](t *table, f function, others ...uintptr) (T, error) {
	var none T
	cell := dl.NewCell(none)
	args := append(make([]uintptr, 0, 8), cell.Address())
	err := t.call(f, append(args, others...)...)
	return cell.Take(), err
}

// failure returns the error of a call, or of the step before it if that failed.
func (t *table) failure(f function, status int32, ok bool) error {
	if !ok {
		return t.first.NewError(status)
	}
	return t.newError(f, Code(status))
}

// query calls a function that may return ErrNotReady, which is not an error.
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

// newError returns an Error with the driver's description of a result. It needs no context.
func (t *table) newError(f function, code Code) error {
	return &Error{
		Call: names[f], Code: code,
		Name: t.describe(getErrorName, code), Text: t.describe(getErrorString, code),
	}
}

// describe calls getErrorName or getErrorString, and returns "" if the driver does not know code.
func (t *table) describe(f function, code Code) string {
	text := dl.NewCell(uintptr(0))
	result := Code(t.symbols[f].Call(uintptr(code), text.Address()))
	at := text.Take()
	if result != Success {
		return ""
	}
	return dl.GoString(at)
}
