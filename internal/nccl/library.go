package nccl

import (
	"fmt"

	"symmem/internal/dl"
)

// Library is a loaded NCCL. It is immutable. Its methods follow the rules on threads in the
// package comment.
type Library struct {
	binding
	origin string
	cells  *cells
}

// newLibrary looks up all functions. Only ncclGetVersion is required; if another function is
// missing, the method that needs it returns an error.
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

// WithStep returns a Library that runs a step before each call, on the same thread. If the step
// makes a context current, for example, goroutines need not lock their threads. The returned
// Library does not support groups, because NCCL keeps groups per thread.
func (l *Library) WithStep(step dl.Step) *Library {
	copied := *l
	copied.before = step
	return &copied
}

// Origin describes where Load found the library.
func (l *Library) Origin() string { return l.origin }

// Windows reports whether the library can register windows, which requires NCCL 2.27.3. Even
// then, a communicator may not support windows, in which case WindowRegister returns 0.
func (l *Library) Windows() bool { return l.missing(commWindowRegister) == nil }

// Suspends reports whether the library can suspend communicators, which requires NCCL 2.29.7.
func (l *Library) Suspends() bool { return l.missing(commSuspend) == nil }

// HasAlltoAll reports whether the library has AlltoAll, which requires NCCL 2.28.3.
func (l *Library) HasAlltoAll() bool { return l.missing(alltoAll) == nil }
