package nccl

import "symmem/internal/dl"

// binding calls the functions of a loaded libnccl. It is immutable.
type binding struct {
	library *dl.Library
	symbols []dl.Symbol // indexed by function
	version int
	// before runs on the same thread before each call, unless it is the zero value.
	before dl.Step
}

// Version returns the library's version as a number, such as 22809, and as text, such as "2.28.9".
func (b *binding) Version() (code int, text string) { return b.version, VersionText(b.version) }

// Path returns the path of the library's file.
func (b *binding) Path() string { return b.library.Path() }

// missing returns an error if the library lacks a function or is older than the function's first
// version.
func (b *binding) missing(f function) error {
	if need := table[f].since; b.symbols[f] == 0 || b.version < need {
		return &VersionError{table[f].name, need, b.version, b.Path()}
	}
	return nil
}

func (b *binding) prepare(f function, args ...uintptr) Invocation {
	c := Invocation{binding: b, function: f, stream: len(args)}
	if symbol := b.symbols[f]; symbol != 0 {
		c.invocation = symbol.Prepare(&b.before, args...)
	}
	return c
}

// call calls a function. It allocates memory only if the function fails.
func (b *binding) call(f function, args ...uintptr) error {
	symbol := b.symbols[f]
	if symbol == 0 {
		return b.missing(f)
	}
	status, ok := symbol.CallAfter(&b.before, args...)
	if !ok || Result(status) != Success {
		return b.failure(f, status, ok)
	}
	return nil
}

// failure returns the error of a failed call. If ok is false, the step before the call failed, and
// failure returns the step's error.
func (b *binding) failure(f function, status int32, ok bool) error {
	if !ok {
		return b.before.NewError(status)
	}
	return b.newError(f, Result(status))
}

func (b *binding) newError(f function, result Result) error {
	return &Error{table[f].name, result, b.ErrorString(result), b.LastError()}
}

// ErrorString returns NCCL's description of a result. Any thread may call it.
func (b *binding) ErrorString(result Result) string {
	symbol := b.symbols[getErrorString]
	if symbol == 0 {
		return result.Error()
	}
	return dl.GoString(symbol.Call(uintptr(result)))
}

// LastError returns the last warning that NCCL issued in this process on any thread, or "". Any
// thread may call it.
func (b *binding) LastError() string {
	symbol := b.symbols[getLastError]
	if symbol == 0 {
		return ""
	}
	return dl.GoString(symbol.Call(0))
}
