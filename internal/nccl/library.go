package nccl

import (
	"fmt"

	"symmem/internal/dl"
)

// Library is a loaded NCCL. The package comment has rules for threads.
type Library struct {
	binding
	origin string
	cells  *cells
}

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

// WithStep returns a Library that runs a step before each call, on the same thread. It does not
// support groups, because NCCL keeps groups per thread.
func (l *Library) WithStep(step dl.Step) *Library {
	copied := *l
	copied.stepBefore = step
	return &copied
}

// Origin describes where Load found the library.
func (l *Library) Origin() string { return l.origin }

// HasWindows reports whether the library can register windows, which requires NCCL 2.27.3. A
// communicator may still not support them.
func (l *Library) HasWindows() bool { return l.checkAvailable(commWindowRegister) == nil }

// CanSuspend reports whether the library can suspend communicators, which requires NCCL 2.29.7.
func (l *Library) CanSuspend() bool { return l.checkAvailable(commSuspend) == nil }

// HasAlltoAll reports whether the library has AlltoAll, which requires NCCL 2.28.3.
func (l *Library) HasAlltoAll() bool { return l.checkAvailable(alltoAll) == nil }
