package cuda

import (
	"errors"

	"symmem/internal/dl"
)

// table calls C functions of libcuda. Suppose that the function cuDeviceGetCount(int *count) has
// the index 4. Then symbols[4] is its address, and getValue[int32](t, 4) returns the count.
//
// Before each call, another function can be called on the same thread: stepBefore. For example, it
// makes a CUDA context current. If it fails, the call itself is not made.
type table struct {
	library    *dl.Library
	symbols    []dl.Symbol // by function; 0 if an optional function is missing
	stepBefore dl.Step     // zero for none
}

// findSymbols sets t.symbols. It returns a MissingError for each missing function that is not
// optional.
func (t *table) findSymbols() error {
	var missing []error
	for f, name := range names {
		symbol, ok := t.library.Find(name)
		isRequired := f < int(firstOptional)
		if !ok && isRequired {
			missing = append(missing, &MissingError{Function: name, Path: t.library.Path()})
		}

		t.symbols = append(t.symbols, symbol)
	}

	return errors.Join(missing...)
}

// call calls a function. args are its arguments in C.
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

// getValue calls a function that stores a value at the address in its first argument. It returns
// the value. args are the other arguments.
func getValue[T any](t *table, f function, args ...uintptr) (T, error) {
	var zero T
	cell := dl.NewCell(zero)         // heap memory for the value, which does not move
	allArgs := make([]uintptr, 0, 8) // on the stack; enough for all callers
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

// newError returns an error for a call of f that has failed with a code.
func (t *table) newError(f function, code Code) error {
	return &Error{
		Call: names[f], Code: code,
		Name: t.describeCode(getErrorName, code), Text: t.describeCode(getErrorString, code),
	}
}

// describeCode calls getErrorName or getErrorString, which return texts about a code. It returns ""
// for an unknown code.
func (t *table) describeCode(getText function, code Code) string {
	cell := dl.NewCell(uintptr(0))
	// Without stepBefore, which could be the call that has failed.
	result := Code(t.symbols[getText].Call(uintptr(code), cell.Address()))
	address := cell.Take() // of a C string that belongs to CUDA
	if result != Success {
		return ""
	}

	return dl.GoString(address)
}
