package dl

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"

	"github.com/ebitengine/purego"
)

// Library is a shared object that stays loaded until the process exits. It is safe for concurrent
// use. C functions open it and find functions in it: dlopen, dlinfo and dlsym.
//
// For example, Open("libcuda.so.1") returns a Library with this name and the path
// /usr/lib/x86_64-linux-gnu/libcuda.so.575.57.08.
type Library struct {
	handle uintptr // by which C functions identify the library
	name   string  // with which it was opened
	path   string  // absolute path without symbolic links, or name
}

// Open opens the first of the named shared objects that can be loaded. A name is a path or a file
// name such as "libcuda.so.1". If a library of that name has already been loaded, Open returns it
// instead of a second copy.
func Open(names ...string) (*Library, error) {
	var errs []error
	for _, name := range names {
		loaded, isLoaded := FindLoaded(name)
		if isLoaded {
			return loaded, nil
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
func FindLoaded(name string) (l *Library, isLoaded bool) {
	const rtldNoload = 0x4 // RTLD_NOLOAD of glibc and musl: do not load the library
	handle, err := open(name, purego.RTLD_NOW|rtldNoload)
	if err != nil {
		return nil, false
	}

	return newLibrary(handle, name), true
}

// open calls dlopen.
func open(name string, mode int) (handle uintptr, err error) {
	if name == "" { // dlopen would return the main program
		return 0, errors.New("the name is empty")
	}

	// After a failure, Dlopen calls dlerror, which returns the last error of the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlopen(name, mode)
}

// newLibrary returns a Library for a handle from open.
func newLibrary(handle uintptr, name string) *Library {
	return &Library{handle: handle, name: name, path: pathOf(handle, name)}
}

// pathOf returns the absolute path of a library without symbolic links, or name if it is unknown.
func pathOf(handle uintptr, name string) string {
	path := loaderPath(handle)
	if path == "" {
		return name
	}

	target, err := filepath.EvalSymlinks(path)
	if err == nil {
		path = target
	}

	absolute, err := filepath.Abs(path)
	if err != nil {
		return name
	}

	return absolute
}

// loaderPath returns the path of a library in the loader's list, or "" if it is unknown.
func loaderPath(handle uintptr) string {
	dlinfo, exists := FindDefault("dlinfo")
	if !exists {
		return ""
	}

	// dlinfo stores the address of the library's entry in the list, a struct link_map, in the cell.
	const rtldLinkMap = 2 // RTLD_DI_LINKMAP of glibc
	cell := NewCell(uintptr(0))
	status := int32(dlinfo.Call(handle, rtldLinkMap, cell.Address()))
	entryAddress := cell.Take()
	isFound := status == 0 && entryAddress != 0
	if !isFound {
		return ""
	}

	// The entry begins with the address of the loaded code, and the address of the path.
	entry := Load[[2]uintptr](entryAddress)
	return GoString(entry[1])
}

// Path returns the absolute path of the library's file, without symbolic links. If the path is
// unknown, it returns Name.
func (l *Library) Path() string { return l.path }

// Name returns the name with which the library was opened.
func (l *Library) Name() string { return l.name }

// Find returns a function that the library or one of its dependencies exports, or false if there is
// none.
func (l *Library) Find(name string) (Symbol, bool) { return find(l.handle, name) }

// FindDefault returns a function of a library that every program loads, such as libc. It returns
// false if there is none.
func FindDefault(name string) (Symbol, bool) { return find(purego.RTLD_DEFAULT, name) }

// find calls dlsym. As in open, the last error is that of the thread.
func find(handle uintptr, name string) (Symbol, bool) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	address, err := purego.Dlsym(handle, name)
	return Symbol(address), err == nil
}
