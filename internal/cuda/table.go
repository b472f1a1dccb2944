package cuda

import (
	"errors"

	"symmem/internal/dl"
)

type table struct {
	library    *dl.Library
	symbols    []dl.Symbol // indexed by function
	stepBefore dl.Step     // runs before each call, on the same thread
}

// The error of findSymbols lists the missing functions, except optional ones.
func (t *table) findSymbols() error {
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

func (t *table) call(f function, args ...uintptr) error {
	status, ok := t.symbols[f].CallAfterStep(&t.stepBefore, args...)
	if !ok || Code(status) != Success {
		return t.callError(f, status, ok)
	}
	return nil
}

// The first argument of the function is the address of the result. args are the others.
func getValue[T any](t *table, f function, args ...uintptr) (T, error) {
	var zero T
	cell := dl.NewCell(zero)
	all := append(make([]uintptr, 0, 8), cell.Address())
	err := t.call(f, append(all, args...)...)
	return cell.Take(), err
}

// callError returns the error for a status of CallAfterStep. If ok is false, the status is that of
// stepBefore.
func (t *table) callError(f function, status int32, ok bool) error {
	if !ok {
		return t.stepBefore.NewError(status)
	}
	return t.newError(f, Code(status))
}

// query returns false without an error if the result is ErrNotReady.
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

func (t *table) describeCode(f function, code Code) string {
	text := dl.NewCell(uintptr(0))
	result := Code(t.symbols[f].Call(uintptr(code), text.Address()))
	address := text.Take()
	if result != Success {
		return ""
	}
	return dl.GoString(address)
}
