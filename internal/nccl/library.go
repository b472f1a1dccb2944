package nccl

import (
	"fmt"

	"symmem/internal/dl"
)

// Library is a loaded NCCL. Its methods follow the rules on threads in the package comment. Its
// fields are immutable except for cells.
type Library struct {
	binding
	origin string
	cells  *cells
}

// newLibrary looks up all functions. Only the version function is required; methods return an error
// if their function is missing.
func newLibrary(library *dl.Library, origin string) (*Library, error) {
	l := &Library{binding: binding{library: library}, origin: origin, cells: new(cells)}
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

// Origin describes where the library was located.
func (l *Library) Origin() string { return l.origin }

// Windows reports whether the library can register windows: it is 2.27.3 or newer. A communicator
// may still not support them; then registration returns window 0.
func (l *Library) Windows() bool { return l.missing(commWindowRegister) == nil }

// HasAlltoAll reports whether the library has AlltoAll: it is 2.28.3 or newer.
func (l *Library) HasAlltoAll() bool { return l.missing(alltoAll) == nil }
