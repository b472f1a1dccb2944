package cuda

import (
	"errors"

	"symmem/internal/dl"
)

// table holds the functions of libcuda.
type table struct {
	library *dl.Library
	symbols []dl.Symbol // indexed by function
	// before runs on the same thread before each call, unless it is the zero value.
	before dl.Step
}

// find looks up all functions. The error lists the missing functions that are required.
func (t *table) find() error {
	var missing []error
	for f, name := range names {
		symbol, ok := t.library.Find(name)
		if !ok && f < int(firstOptional) {
			missing = append(missing, &MissingError{name, t.library.Path()})
		}
		t.symbols = append(t.symbols, symbol)
	}
	return errors.Join(missing...)
}

// call calls a function. It allocates memory only if the function fails.
func (t *table) call(f function, args ...uintptr) error {
	if status, ok := t.symbols[f].CallAfter(&t.before, args...); !ok || Code(status) != Success {
		return t.failure(f, status, ok)
	}
	return nil
}

// getValue calls a function whose first argument is the address of its result.
func getValue[T any](t *table, f function, rest ...uintptr) (T, error) {
	var zero T
	cell := dl.NewCell(zero)
	args := append(make([]uintptr, 0, 8), cell.Address())
	err := t.call(f, append(args, rest...)...)
	return cell.Take(), err
}

// failure returns the error of a failed call. If ok is false, the step before the call failed, and
// failure returns the step's error.
func (t *table) failure(f function, status int32, ok bool) error {
	if !ok {
		return t.before.NewError(status)
	}
	return t.newError(f, Code(status))
}

// query calls a function, and returns false without an error if the result is ErrNotReady.
func (t *table) query(f function, handle uintptr) (done bool, err error) {
	status, ok := t.symbols[f].CallAfter(&t.before, handle)
	switch {
	case ok && Code(status) == Success:
		return true, nil
	case ok && Code(status) == ErrNotReady:
		return false, nil
	default:
		return false, t.failure(f, status, ok)
	}
}

// newError returns an Error with the driver's description. It needs no context.
func (t *table) newError(f function, code Code) error {
	return &Error{
		Call: names[f], Code: code,
		Name: t.describe(getErrorName, code), Text: t.describe(getErrorString, code),
	}
}

// describe calls getErrorName or getErrorString. It returns "" if the driver does not know the
// code.
func (t *table) describe(f function, code Code) string {
	text := dl.NewCell(uintptr(0))
	result := Code(t.symbols[f].Call(uintptr(code), text.Address()))
	address := text.Take()
	if result != Success {
		return ""
	}
	return dl.GoString(address)
}
