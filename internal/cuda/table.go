package cuda

import (
	"errors"

	"symmem/internal/dl"
)

// table calls C functions of libcuda.
type table struct {
	library *dl.Library
	symbols []dl.Symbol // indexed by function; 0 if an optional function is missing

	// stepBefore runs before each call on the same thread, for example to make a context current. If
	// it fails, the call is skipped.
	stepBefore dl.Step
}

// findSymbols sets symbols. The error joins a MissingError for each missing required function.
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

// has reports whether the library has an optional function.
func (t *table) has(f function) bool { return t.symbols[f] != 0 }

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

// getValue returns the value that f stores at the address in its first argument. args are the other
// arguments.
func getValue[T any](t *table, f function, args ...uintptr) (T, error) {
	var zero T
	cell := dl.NewCell(zero)
	const stackArgs = 8 // the callers pass fewer, so that allArgs stays on the stack
	allArgs := make([]uintptr, 0, stackArgs)
	allArgs = append(allArgs, cell.Address())
	allArgs = append(allArgs, args...)
	err := t.call(f, allArgs...)
	return cell.Take(), err
}

// query calls a function that returns Success or, if work is unfinished, ErrNotReady.
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

func (t *table) newError(f function, code Code) error {
	return &Error{
		Call: names[f], Code: code,
		Name: t.describeCode(getErrorName, code), Text: t.describeCode(getErrorString, code),
	}
}

// describeCode calls getErrorName or getErrorString. It returns "" for an unknown code.
func (t *table) describeCode(getText function, code Code) string {
	cell := dl.NewCell(uintptr(0))
	// Omit stepBefore, which may have caused the error.
	result := Code(t.symbols[getText].Call(uintptr(code), cell.Address()))
	textAddress := cell.Take()
	if result != Success {
		return ""
	}

	return dl.GoString(textAddress)
}
