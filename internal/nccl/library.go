package nccl

import (
	"fmt"

	"symmem/internal/dl"
)

// Library is a loaded NCCL. Its methods follow the rules on threads in the package's comment; the
// fields are immutable but for cells.
type Library struct {
	library *dl.Library
	origin  string
	symbols []dl.Symbol // of table
	version int
	// first is made right before each call; the zero value is none.
	first dl.Step

	cells *cells
}

// newLibrary probes all functions. Only the version must be there: what else is missing is an
// error of the method that needs it.
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

// After is the library for use on any thread, which need not be locked for it: a step precedes each
// call on its thread, such as the one that makes a context current. Groups of calls, which NCCL
// keeps for each thread, do not go through it.
func (l *Library) After(first dl.Step) *Library {
	after := *l
	after.first = first
	return &after
}

// Version is the library's version, as a number (22809) and as people write it (2.28.9). Ranks
// must all have the same.
func (l *Library) Version() (code int, text string) { return l.version, VersionText(l.version) }

// Path is the file of the library.
func (l *Library) Path() string { return l.library.Path() }

// Origin says in words where the search found the library.
func (l *Library) Origin() string { return l.origin }

// Windows reports whether the library can register windows: it is 2.27.3 or newer. Whether a
// communicator can is another question, to which a registration that gives window 0 is the answer.
func (l *Library) Windows() bool { return l.missing(commWindowRegister) == nil }

// HasAlltoAll reports whether AlltoAll can be called: the library is 2.28.3 or newer.
func (l *Library) HasAlltoAll() bool { return l.missing(alltoAll) == nil }

// missing returns an error if the library lacks a function or is older than its first version.
func (l *Library) missing(f function) error {
	if need := table[f].first; l.symbols[f] == 0 || l.version < need {
		return &VersionError{table[f].name, need, l.version, l.Path()}
	}
	return nil
}

// call calls a function and turns its result into an error. It does not allocate unless the
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

// failure is the error of a call, or of the step before it if that is what did not go well.
func (l *Library) failure(f function, status int32, ok bool) error {
	if !ok {
		return l.first.Refused(status)
	}
	return l.newError(f, Result(status))
}

func (l *Library) newError(f function, result Result) error {
	return &Error{table[f].name, result, l.ErrorString(result), l.LastError()}
}

// ErrorString is what NCCL calls a result. It may be called by any thread.
func (l *Library) ErrorString(result Result) string {
	symbol := l.symbols[getErrorString]
	if symbol == 0 {
		return result.Error()
	}
	return dl.GoString(symbol.Call(uintptr(result)))
}

// LastError is the last warning that NCCL gave in this process, or "". It may be called by any
// thread, but another one's failure may change the text at the same time.
func (l *Library) LastError() string {
	symbol := l.symbols[getLastError]
	if symbol == 0 {
		return ""
	}
	return dl.GoString(symbol.Call(0))
}
