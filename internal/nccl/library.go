package nccl

import (
	"fmt"

	"symmem/internal/dl"
)

// Library is a loaded NCCL. Its methods follow the rules on threads in the package comment. Its
// fields are immutable except for cells.
type Library struct {
	library *dl.Library
	origin  string
	symbols []dl.Symbol // of table
	version int
	// first is called right before each call. It may be the zero value.
	first dl.Step

	cells *cells
}

// newLibrary looks up all functions. Only the version function is required; methods return an error
// if their function is missing.
func newLibrary(library *dl.Library, origin string) (*Library, error) {
	l := &Library{library: library, origin: origin, cells: new(cells)}
	for _, f := range table {
		symbol, _ := library.Find(f.name)
		l.symbols = append(l.symbols, symbol)
	}
	if l.symbols[getVersion] == 0 {
		return nil, fmt.Errorf("%w: %s has no ncclGetVersion", ErrNoLibrary, library.Path())
	}
	version := dl.NewCell(int32(0))
	err := l.call(getVersion, version.Address())
	l.version = int(version.Take())
	if err != nil {
		return nil, err
	}
	return l, nil
}

// After returns a Library for use on any thread, without locking it. Before each call the step
// first runs on the same thread, for example to make a context current. Groups, which NCCL keeps
// per thread, cannot be used with it.
func (l *Library) After(first dl.Step) *Library {
	after := *l
	after.first = first
	return &after
}

// Version returns the library's version as a number (22809) and as text (2.28.9). It must be the
// same on all ranks.
func (l *Library) Version() (code int, text string) { return l.version, VersionText(l.version) }

// Path returns the file of the library.
func (l *Library) Path() string { return l.library.Path() }

// Origin describes where the library was located.
func (l *Library) Origin() string { return l.origin }

// Windows reports whether the library can register windows: it is 2.27.3 or newer. A communicator
// may still not support them; then registration returns window 0.
func (l *Library) Windows() bool { return l.missing(commWindowRegister) == nil }

// HasAlltoAll reports whether the library has AlltoAll: it is 2.28.3 or newer.
func (l *Library) HasAlltoAll() bool { return l.missing(alltoAll) == nil }

// missing returns an error if the library lacks a function or is older than its first version.
func (l *Library) missing(f function) error {
	if need := table[f].first; l.symbols[f] == 0 || l.version < need {
		return &VersionError{table[f].name, need, l.version, l.Path()}
	}
	return nil
}

// call calls a function and converts its result to an error. It does not allocate unless the
// function fails.
func (l *Library) call(f function, args ...uintptr) error {
	symbol := l.symbols[f]
	if symbol == 0 {
		return l.missing(f)
	}
	status, ok := symbol.StatusAfter(&l.first, args...)
	if !ok || Result(status) != Success {
		return l.failure(f, status, ok)
	}
	return nil
}

// failure returns the error of a call, or of the step before it if that failed.
func (l *Library) failure(f function, status int32, ok bool) error {
	if !ok {
		return l.first.Refused(status)
	}
	return l.newError(f, Result(status))
}

func (l *Library) newError(f function, result Result) error {
	return &Error{table[f].name, result, l.ErrorString(result), l.LastError()}
}

// ErrorString returns NCCL's description of a result. Any thread may call it.
func (l *Library) ErrorString(result Result) string {
	symbol := l.symbols[getErrorString]
	if symbol == 0 {
		return result.Error()
	}
	return dl.GoString(symbol.Call(uintptr(result)))
}

// LastError returns NCCL's last warning in this process, or "". Any thread may call it, but a
// failure on another thread may change the text concurrently.
func (l *Library) LastError() string {
	symbol := l.symbols[getLastError]
	if symbol == 0 {
		return ""
	}
	return dl.GoString(symbol.Call(0))
}
