package cuda

import (
	"errors"

	"symmem/internal/dl"
)

// table calls the functions that a library exports.
type table struct {
	library    *dl.Library
	symbols    []dl.Symbol // by function; 0 if an optional function is missing
	stepBefore dl.Step     // precedes each call, on the same thread
}

// findSymbols fills t.symbols. It returns a MissingError for each missing function that is not
// optional.
func (t *table) findSymbols() error {
	var missing []error
	for f, name := range names {
		symbol, ok := t.library.Find(name)
		isOptional := f >= int(firstOptional)
		if !ok && !isOptional {
			missing = append(missing, &MissingError{name, t.library.Path()})
		}
		t.symbols = append(t.symbols, symbol)
	}
	return errors.Join(missing...)
}

func (t *table) call(f function, args ...uintptr) error {
	status, ok := t.symbols[f].CallAfterStep(&t.stepBefore, args...)
	if !ok || Code(status) != Success {
		return t.callError(f, status, ok)
	}
	return nil
}

// getValue calls a function whose first parameter is a pointer to the result, and returns the
// result. args are the other arguments.
func getValue[T any](t *table, f function, args ...uintptr) (T, error) {
	var zero T
	cell := dl.NewCell(zero)
	allArgs := append(make([]uintptr, 0, 8), cell.Address())
	err := t.call(f, append(allArgs, args...)...)
	return cell.Take(), err
}

// callError returns the error for the results of CallAfterStep: status is that of f, or of
// stepBefore if ok is false.
func (t *table) callError(f function, status int32, ok bool) error {
	if !ok {
		return t.stepBefore.NewError(status)
	}
	return t.newError(f, Code(status))
}

// query calls a function that reports whether work is done: Success means true, and ErrNotReady
// false.
func (t *table) query(f function, handle uintptr) (done bool, err error) {
	status, ok := t.symbols[f].CallAfterStep(&t.stepBefore, handle)
	switch {
	case ok && Code(status) == Success:
		return true, nil
	case ok && Code(status) == ErrNotReady:
		return false, nil
	default:
		return false, t.callError(f, status, ok)
	}
}

func (t *table) newError(f function, code Code) error {
	return &Error{
		Call: names[f], Code: code,
		Name: t.describeCode(getErrorName, code), Text: t.describeCode(getErrorString, code),
	}
}

// describeCode returns the text that f, cuGetErrorName or cuGetErrorString, has for a code. It
// returns "" for an unknown code.
func (t *table) describeCode(f function, code Code) string {
	text := dl.NewCell(uintptr(0))
	result := Code(t.symbols[f].Call(uintptr(code), text.Address()))
	address := text.Take()
	if result != Success {
		return ""
	}
	return dl.GoString(address)
}
