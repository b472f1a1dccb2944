package cublas

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"symmem/internal/dl"
)

// ErrNoLibrary is returned by Load when there is no cuBLAS, or one that lacks a function.
var ErrNoLibrary = errors.New("no cuBLAS")

// function is a function of libcublas, by its place in names.
type function uint8

const (
	create function = iota
	destroy
	getVersion
	setStream
	setWorkspace
	gemmEx
	functions
)

var names = [functions]string{
	create:       "cublasCreate_v2",
	destroy:      "cublasDestroy_v2",
	getVersion:   "cublasGetVersion_v2",
	setStream:    "cublasSetStream_v2",
	setWorkspace: "cublasSetWorkspace_v2",
	gemmEx:       "cublasGemmEx",
}

// Library is a loaded cuBLAS. It is immutable and safe for use by several goroutines.
type Library struct {
	library *dl.Library
	symbols [functions]dl.Symbol
}

// Load opens cuBLAS. A path names the file and is the only place that is looked at; an empty one
// searches, in this order: the file that SYMMEM_CUBLAS names and no other if it is set, the copy
// that the process has loaded already, the wheels of the Python environment, /usr/local/cuda, the
// system's loader. Errors match ErrNoLibrary.
func Load(path string) (*Library, error) {
	if path == "" {
		path = os.Getenv(PathVariable)
	}
	if path != "" {
		return open(path)
	}
	for _, name := range sonames {
		if library, ok := dl.Resident(name); ok {
			return newLibrary(library)
		}
	}
	return open(candidates(os.Getenv)...)
}

// open takes the first file that opens and has all functions.
func open(paths ...string) (*Library, error) {
	var tried []error
	for _, path := range paths {
		companion(path)
		library, err := dl.Open(path)
		if err == nil {
			return newLibrary(library)
		}
		tried = append(tried, err)
	}
	return nil, fmt.Errorf("%w: install it (pip install nvidia-cublas-cu12), or name its file in "+
		"$%s; looked at:\n%w", ErrNoLibrary, PathVariable, errors.Join(tried...))
}

// companion loads the library that libcublas needs from the same folder, where the system's loader
// may not look. That there is none is no error: then libcublas itself says what it misses.
func companion(path string) {
	folder, name := filepath.Split(path)
	if folder != "" {
		_, _ = dl.Open(folder + strings.Replace(name, "libcublas.", "libcublasLt.", 1))
	}
}

func newLibrary(library *dl.Library) (*Library, error) {
	l := &Library{library: library}
	for f := range functions {
		symbol, ok := library.Find(names[f])
		if !ok {
			return nil, fmt.Errorf("%w: %s has no %s", ErrNoLibrary, library.Path(), names[f])
		}
		l.symbols[f] = symbol
	}
	return l, nil
}

// Path is the file of the library.
func (l *Library) Path() string { return l.library.Path() }

// call calls a function and turns its status into an error. It does not allocate unless the
// function fails.
func (l *Library) call(f function, args ...uintptr) error {
	if status := Status(l.symbols[f].Call(args...)); status != Success {
		return &Error{names[f], status}
	}
	return nil
}
