package dl

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"

	"github.com/ebitengine/purego"
)

// noload makes dlopen find what the process has loaded already, and nothing else. The value is
// that of RTLD_NOLOAD in glibc's bits/dlfcn.h; musl's is the same.
const noload = 0x4

// linkMap is dlinfo's request for the entry of a library in the loader's list: RTLD_DI_LINKMAP of
// glibc's dlfcn.h.
const linkMap = 2

// Library is a shared object of the process. It is immutable, safe for use by several goroutines,
// and stays loaded until the process ends.
type Library struct {
	handle uintptr
	name   string
	path   string
}

// Open opens the first of the named shared objects that there is. A name without a slash is
// searched for by the system's loader. Each name is looked for among what the process has loaded
// already before it is loaded anew, so that there is one copy of it. The error says what the
// loader said about each name.
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

// Resident finds a shared object that the process has loaded already, and never loads one.
func Resident(name string) (l *Library, ok bool) {
	handle, err := open(name, purego.RTLD_NOW|noload)
	if err != nil {
		return nil, false
	}
	return newLibrary(handle, name), true
}

// open keeps its thread, because dlerror tells about the last failure of a thread.
func open(name string, mode int) (uintptr, error) {
	if name == "" {
		return 0, errors.New("the name is empty") // which dlopen takes for the program itself
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlopen(name, mode)
}

func newLibrary(handle uintptr, name string) *Library {
	return &Library{handle: handle, name: name, path: fileOf(handle, name)}
}

// fileOf asks the loader where a library came from. Links are followed, so that two names of one
// file give the same answer. Without dlinfo the name has to do.
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

// Path is the file that the library was loaded from, absolute and with links followed.
func (l *Library) Path() string { return l.path }

// Name is the name that the library was asked for by.
func (l *Library) Name() string { return l.name }

// Find returns the function of the given name, which the library, or one that it needs, exports.
func (l *Library) Find(name string) (Symbol, bool) { return find(l.handle, name) }

// Default returns a function of those libraries that every program has, such as libc's.
func Default(name string) (Symbol, bool) { return find(purego.RTLD_DEFAULT, name) }

func find(handle uintptr, name string) (Symbol, bool) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	at, err := purego.Dlsym(handle, name)
	return Symbol(at), err == nil
}
