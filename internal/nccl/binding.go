package nccl

import "symmem/internal/dl"

// binding calls the C functions of a loaded NCCL. Each function has an index. For example,
// table[allReduce] has the name "ncclAllReduce", and symbols[allReduce] has its address, or 0 if
// this version of NCCL lacks the function.
type binding struct {
	library    *dl.Library
	symbols    []dl.Symbol
	version    int
	stepBefore dl.Step // precedes each call that returns a Result, on the same thread; may be zero
}

// Version returns the version as a number, such as 22809, and as text, such as "2.28.9".
func (b *binding) Version() (code int, text string) { return b.version, VersionText(b.version) }

// Path returns the path of the library's file.
func (b *binding) Path() string { return b.library.Path() }

// checkAvailable returns an error if the library lacks a function or is older than its first
// version.
func (b *binding) checkAvailable(f function) error {
	minVersion := table[f].since
	isMissing := b.symbols[f] == 0
	if isMissing || b.version < minVersion {
		return &VersionError{table[f].name, minVersion, b.version, b.Path()}
	}

	return nil
}

// call calls a function that returns a Result.
func (b *binding) call(f function, args ...uintptr) error {
	symbol := b.symbols[f]
	if symbol == 0 {
		return b.checkAvailable(f) // an error, because the function is missing
	}

	status, ok := symbol.CallAfterStep(&b.stepBefore, args...)
	isSuccess := ok && Result(status) == Success
	if isSuccess {
		return nil
	}

	return b.callError(f, status, ok)
}

// prepare prepares calls of a function whose last argument is a stream, which Invocation.On adds.
func (b *binding) prepare(f function, args ...uintptr) Invocation {
	i := Invocation{binding: b, function: f, streamIndex: len(args)}
	if symbol := b.symbols[f]; symbol != 0 {
		i.invocation = symbol.Prepare(&b.stepBefore, args...)
	}

	return i
}

// callError returns the error for a failed call. If ok is false, stepBefore has failed, and status
// is its status. Otherwise, status is a Result.
func (b *binding) callError(f function, status int32, ok bool) error {
	if !ok {
		return b.stepBefore.NewError(status)
	}

	return b.newError(f, Result(status))
}

// newError returns the error for a result other than Success, which a function has returned or
// stored.
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

	const communicator = 0 // NCCL ignores this argument
	return dl.GoString(symbol.Call(communicator))
}
