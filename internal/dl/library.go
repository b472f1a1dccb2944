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
	handle, err := open(name, purego.RTLD_NOW|rtldNoload)
	if err != nil {
		return nil, false
	}

	return newLibrary(handle, name), true
}

// open calls dlopen. The goroutine must stay on its thread: after a failure, Dlopen calls dlerror,
// which returns the last error of the thread.
func open(name string, mode int) (uintptr, error) {
	if name == "" {
		// For an empty name, dlopen would return the main program.
		return 0, errors.New("the name is empty")
	}

	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlopen(name, mode)
}

// newLibrary returns a Library for a handle from open.
func newLibrary(handle uintptr, name string) *Library {
	return &Library{handle: handle, name: name, path: pathOf(handle, name)}
}

// pathOf returns the result of Library.Path.
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

// loaderPath returns the path in the loader's list of libraries, or "" if it is unknown.
func loaderPath(handle uintptr) string {
	dlinfo, exists := FindDefault("dlinfo")
	if !exists {
		return ""
	}

	cell := NewCell(uintptr(0)) // dlinfo stores the address of a struct link_map here.
	status := int32(dlinfo.Call(handle, rtldLinkMap, cell.Address()))
	linkMapAddress := cell.Take()
	if status != 0 || linkMapAddress == 0 {
		return ""
	}

	// struct link_map of C begins with the load address and a pointer to the path.
	linkMap := Load[[2]uintptr](linkMapAddress)
	return GoString(linkMap[1])
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

// find calls dlsym. The goroutine must stay on its thread, as in open.
func find(handle uintptr, name string) (Symbol, bool) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	address, err := purego.Dlsym(handle, name)
	return Symbol(address), err == nil
}
