package cuda

import (
	"errors"

	"symmem/internal/dl"
)

// table calls the functions that a library exports.
type table struct {
	library    *dl.Library
	symbols    []dl.Symbol // by function; 0 if an optional function is missing
	stepBefore dl.Step     // a call that precedes each call, on the same thread; zero for none
}

// findSymbols fills t.symbols. It returns a MissingError for each missing function that is not
// optional.
func (t *table) findSymbols() error {
	var missing []error
	for f, name := range names {
		symbol, ok := t.library.Find(name)
		isOptional := f >= int(firstOptional)
		if !ok && !isOptional {
			missing = append(missing, &MissingError{Function: name, Path: t.library.Path()})
		}

		t.symbols = append(t.symbols, symbol)
	}

	return errors.Join(missing...)
}

// call calls a function after stepBefore. args are its arguments in C.
func (t *table) call(f function, args ...uintptr) error {
	status, isStepDone := t.symbols[f].CallAfterStep(&t.stepBefore, args...)
	if !isStepDone {
		return t.stepBefore.NewError(status)
	}

	if Code(status) != Success {
		return t.newError(f, Code(status))
	}

	return nil
}

// getValue calls a function whose first parameter is a pointer to the result, and returns the
// result. args are the other arguments.
func getValue[T any](t *table, f function, args ...uintptr) (T, error) {
	var zero T
	cell := dl.NewCell(zero)         // heap memory, which does not move
	allArgs := make([]uintptr, 0, 8) // enough for all callers, and on the stack
	allArgs = append(allArgs, cell.Address())
	allArgs = append(allArgs, args...)
	err := t.call(f, allArgs...)
	return cell.Take(), err
}

// query calls a function that reports whether work is done. The function returns Success if it is,
// and ErrNotReady if it is not.
func (t *table) query(f function, handle uintptr) (done bool, err error) {
	status, isStepDone := t.symbols[f].CallAfterStep(&t.stepBefore, handle)
	if !isStepDone {
		return false, t.stepBefore.NewError(status)
	}

	switch Code(status) {
	case Success:
		return true, nil
	case ErrNotReady:
		return false, nil
	default:
		return false, t.newError(f, Code(status))
	}
}

// newError returns an error for a failed call.
func (t *table) newError(f function, code Code) error {
	return &Error{
		Call: names[f], Code: code,
		Name: t.describeCode(getErrorName, code), Text: t.describeCode(getErrorString, code),
	}
}

// describeCode returns CUDA's text for a code, or "" for an unknown code. f is getErrorName or
// getErrorString. It calls f without stepBefore, which could fail itself.
func (t *table) describeCode(f function, code Code) string {
	cell := dl.NewCell(uintptr(0))
	result := Code(t.symbols[f].Call(uintptr(code), cell.Address()))
	address := cell.Take() // of a C string that belongs to CUDA
	if result != Success {
		return ""
	}

	return dl.GoString(address)
}
