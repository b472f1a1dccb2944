package dl

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"

	"github.com/ebitengine/purego"
)

// noload makes dlopen return only libraries that the process has loaded. It is RTLD_NOLOAD of
// glibc's bits/dlfcn.h, with the same value in musl.
const noload = 0x4

// linkMap requests the entry of a library in the loader's list from dlinfo: RTLD_DI_LINKMAP of
// glibc's dlfcn.h.
const linkMap = 2

// Library is a shared object loaded by the process. It is immutable, safe for concurrent use, and
// stays loaded until the process ends.
type Library struct {
	handle uintptr
	name   string
	path   string
}

// Open opens the first of the named shared objects that exists. A name without a slash is searched
// for by the system's loader. A library that the process has loaded under a name is reused, so that
// there is one copy of it. The error contains the loader's message for each name.
func Open(names ...string) (*Library, error) {
	var all []error
	for _, name := range names {
		if l, ok := Resident(name); ok {
			return l, nil
		}
		handle, err := open(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
		if err == nil {
			return newLibrary(handle, name), nil
		}
		all = append(all, fmt.Errorf("opening %s: %w", name, err))
	}
	if len(all) == 0 {
		return nil, errors.New("opening a library: no name was given")
	}
	return nil, errors.Join(all...)
}

// Resident returns a shared object that the process has loaded, and never loads one.
func Resident(name string) (l *Library, ok bool) {
	handle, err := open(name, purego.RTLD_NOW|noload)
	if err != nil {
		return nil, false
	}
	return newLibrary(handle, name), true
}

// open keeps its thread, since dlerror returns the last error of the calling thread.
func open(name string, mode int) (uintptr, error) {
	if name == "" {
		return 0, errors.New("the name is empty") // dlopen would open the program
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlopen(name, mode)
}

func newLibrary(handle uintptr, name string) *Library {
	return &Library{handle: handle, name: name, path: fileOf(handle, name)}
}

// fileOf asks the loader for the file of a library. Links are followed, so that two names of one
// file give the same result. Without dlinfo it returns the name.
func fileOf(handle uintptr, name string) string {
	dlinfo, ok := Default("dlinfo")
	if !ok {
		return name
	}
	entry := NewCell(uintptr(0))
	failed := int32(dlinfo.Call(handle, linkMap, entry.Address())) != 0
	at := entry.Take()
	if failed || at == 0 {
		return name
	}
	// struct link_map begins with the load address and a pointer to the name (glibc's link.h).
	path := GoString(Load[[2]uintptr](at)[1])
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	if absolute, err := filepath.Abs(path); err == nil && path != "" {
		return absolute
	}
	return name
}

// Path returns the absolute path of the file that the library was loaded from, with links followed.
func (l *Library) Path() string { return l.path }

// Name returns the name under which the library was opened.
func (l *Library) Name() string { return l.name }

// Find returns a function that the library, or one of its dependencies, exports.
func (l *Library) Find(name string) (Symbol, bool) { return find(l.handle, name) }

// Default returns a function of the libraries that every program loads, such as libc.
func Default(name string) (Symbol, bool) { return find(purego.RTLD_DEFAULT, name) }

func find(handle uintptr, name string) (Symbol, bool) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	at, err := purego.Dlsym(handle, name)
	return Symbol(at), err == nil
}
