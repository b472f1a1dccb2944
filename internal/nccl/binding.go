package nccl

import "symmem/internal/dl"

type binding struct {
	library    *dl.Library
	symbols    []dl.Symbol // indexed by function
	version    int
	stepBefore dl.Step // runs before each call, on the same thread
}

// Version returns the version as a number, such as 22809, and as text, such as "2.28.9".
func (b *binding) Version() (code int, text string) { return b.version, VersionText(b.version) }

func (b *binding) Path() string { return b.library.Path() }

// checkAvailable returns an error if the library lacks a function or is older than its first
// version.
func (b *binding) checkAvailable(f function) error {
	if minVersion := table[f].since; b.symbols[f] == 0 || b.version < minVersion {
		return &VersionError{table[f].name, minVersion, b.version, b.Path()}
	}

	return nil
}

func (b *binding) prepare(f function, args ...uintptr) Invocation {
	i := Invocation{binding: b, function: f, streamIndex: len(args)}
	if symbol := b.symbols[f]; symbol != 0 {
		i.invocation = symbol.Prepare(&b.stepBefore, args...)
	}

	return i
}

func (b *binding) call(f function, args ...uintptr) error {
	symbol := b.symbols[f]
	if symbol == 0 {
		return b.checkAvailable(f)
	}

	status, ok := symbol.CallAfterStep(&b.stepBefore, args...)
	if !ok || Result(status) != Success {
		return b.callError(f, status, ok)
	}

	return nil
}

// callError returns the error for a status of CallAfterStep. If ok is false, the status is that of
// stepBefore.
func (b *binding) callError(f function, status int32, ok bool) error {
	if !ok {
		return b.stepBefore.NewError(status)
	}

	return b.newError(f, Result(status))
}

func (b *binding) newError(f function, result Result) error {
	return &Error{table[f].name, result, b.ErrorString(result), b.LastError()}
}

// ErrorString describes a result. Any thread can call it.
func (b *binding) ErrorString(result Result) string {
	symbol := b.symbols[getErrorString]
	if symbol == 0 {
		return result.Error()
	}

	return dl.GoString(symbol.Call(uintptr(result)))
}

// LastError returns the last warning of NCCL in this process, or "". Any thread can call it.
func (b *binding) LastError() string {
	symbol := b.symbols[getLastError]
	if symbol == 0 {
		return ""
	}

	return dl.GoString(symbol.Call(0))
}
