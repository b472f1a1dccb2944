package nccl

import "symmem/internal/dl"

// binding calls the C functions of a loaded NCCL. A value of type function, such as allReduce, is
// an index into symbols and into the package's table of function names.
type binding struct {
	library *dl.Library
	symbols []dl.Symbol // address of each function; 0 if the library lacks it
	version int         // such as 22809 for NCCL 2.28.9
	// stepBefore runs on the same thread before each call that returns a Result. The zero Step does
	// nothing.
	stepBefore dl.Step
}

// Version returns the version as a number, such as 22809, and as text, such as "2.28.9".
func (b *binding) Version() (code int, text string) { return b.version, VersionText(b.version) }

// Path returns the path of the loaded file.
func (b *binding) Path() string { return b.library.Path() }

// checkAvailable returns a VersionError if the library lacks f or is older than the first version
// with a usable f.
func (b *binding) checkAvailable(f function) error {
	minVersion := table[f].since
	isMissing := b.symbols[f] == 0
	if isMissing || b.version < minVersion {
		return &VersionError{
			Call: table[f].name, Need: minVersion, Have: b.version, Path: b.Path(),
		}
	}

	return nil
}

// call calls a function that returns a Result.
func (b *binding) call(f function, args ...uintptr) error {
	symbol := b.symbols[f]
	isMissing := symbol == 0
	if isMissing {
		return b.checkAvailable(f)
	}

	status, isCalled := symbol.CallAfterStep(&b.stepBefore, args...)
	isSuccess := isCalled && Result(status) == Success
	if isSuccess {
		return nil
	}

	return b.callError(f, status, isCalled)
}

// prepare prepares a call. args lacks the last argument, a stream, which Invocation.On adds.
func (b *binding) prepare(f function, args ...uintptr) Invocation {
	i := Invocation{binding: b, function: f, streamIndex: len(args)}
	if symbol := b.symbols[f]; symbol != 0 {
		i.cCall = symbol.Prepare(&b.stepBefore, args...)
	}

	return i
}

// callError returns the error of a call that did not succeed. If isCalled is false, stepBefore has
// failed with the status, and f was not called.
func (b *binding) callError(f function, status int32, isCalled bool) error {
	if !isCalled {
		return b.stepBefore.NewError(status)
	}

	return b.newError(f, Result(status))
}

func (b *binding) newError(f function, result Result) error {
	return &Error{
		Call: table[f].name, Code: result, Text: b.ErrorString(result), Last: b.LastError(),
	}
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

	const comm = 0 // NCCL ignores this argument.
	return dl.GoString(symbol.Call(comm))
}
