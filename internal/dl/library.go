package dl

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"

	"github.com/ebitengine/purego"
)

const (
	// rtldNoload is RTLD_NOLOAD of glibc and musl: dlopen returns a library only if it is loaded.
	rtldNoload = 0x4
	// rtldLinkMap is RTLD_DI_LINKMAP of glibc: dlinfo returns the library's entry in the loader's
	// list of libraries.
	rtldLinkMap = 2
)

// Library is a shared object that stays loaded until the process exits. It is safe for concurrent
// use.
type Library struct {
	handle uintptr
	name   string // see Name
	path   string // see Path
}

// Open opens the first of the named shared objects that can be loaded. If a library of that name
// has already been loaded, Open returns it instead of a second copy.
func Open(names ...string) (*Library, error) {
	var errs []error
	for _, name := range names {
		if l, ok := FindLoaded(name); ok {
			return l, nil
		}
		handle, err := open(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
		if err == nil {
			return newLibrary(handle, name), nil
		}
		errs = append(errs, fmt.Errorf("opening %s: %w", name, err))
	}
	if len(errs) == 0 {
		return nil, errors.New("opening a library: no name is given")
	}
	return nil, errors.Join(errs...)
}

// FindLoaded returns the shared object with the given name if the process has already loaded it.
func FindLoaded(name string) (l *Library, ok bool) {
	handle, err := open(name, purego.RTLD_NOW|rtldNoload)
	if err != nil {
		return nil, false
	}
	return newLibrary(handle, name), true
}

// open calls dlopen. It locks the thread, because dlerror returns the last error of the thread.
func open(name string, mode int) (uintptr, error) {
	if name == "" {
		// For an empty name, dlopen would return the main program.
		return 0, errors.New("the name is empty")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlopen(name, mode)
}

func newLibrary(handle uintptr, name string) *Library {
	return &Library{handle: handle, name: name, path: pathOf(handle, name)}
}

// pathOf returns the result of Library.Path.
func pathOf(handle uintptr, name string) string {
	dlinfo, ok := FindDefault("dlinfo")
	if !ok {
		return name
	}
	entry := NewCell(uintptr(0))
	failed := int32(dlinfo.Call(handle, rtldLinkMap, entry.Address())) != 0
	address := entry.Take()
	if failed || address == 0 {
		return name
	}
	// struct link_map of C begins with the load address and a pointer to the path.
	linkMap := Load[[2]uintptr](address)
	path := GoString(linkMap[1])
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	if absolute, err := filepath.Abs(path); err == nil && path != "" {
		return absolute
	}
	return name
}

// Path returns the absolute path of the library's file, without symbolic links. If the path is
// unknown, it returns Name.
func (l *Library) Path() string { return l.path }

// Name returns the name with which the library was opened.
func (l *Library) Name() string { return l.name }

// Find returns a function that the library or one of its dependencies exports.
func (l *Library) Find(name string) (Symbol, bool) { return find(l.handle, name) }

// FindDefault returns a function of a library that every program loads, such as libc.
func FindDefault(name string) (Symbol, bool) { return find(purego.RTLD_DEFAULT, name) }

func find(handle uintptr, name string) (Symbol, bool) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	address, err := purego.Dlsym(handle, name)
	return Symbol(address), err == nil
}
