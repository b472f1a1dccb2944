package dl

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"

	"github.com/ebitengine/purego"
)

// Library is a shared object that stays loaded until the process exits. It is safe for concurrent
// use.
type Library struct {
	handle uintptr // from dlopen
	name   string  // argument of Open, such as "libcuda.so.1"
	path   string  // such as "/usr/lib/x86_64-linux-gnu/libcuda.so.575.57.08"; name if unknown
}

// Open tries names in order, and returns the first library that is already loaded or can be loaded.
// Each name is a path or a file name such as "libcuda.so.1".
func Open(names ...string) (*Library, error) {
	var errs []error
	for _, name := range names {
		if loaded, isLoaded := FindLoaded(name); isLoaded {
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

// FindLoaded returns a shared object if the process has already loaded it.
func FindLoaded(name string) (l *Library, isLoaded bool) {
	const rtldNoload = 0x4 // RTLD_NOLOAD of glibc and musl
	handle, err := open(name, purego.RTLD_NOW|rtldNoload)
	if err != nil {
		return nil, false
	}

	return newLibrary(handle, name), true
}

func open(name string, mode int) (handle uintptr, err error) {
	if name == "" { // dlopen would open the main program
		return 0, errors.New("the name is empty")
	}

	// purego calls dlopen and then dlerror, which returns the last error of the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlopen(name, mode)
}

func newLibrary(handle uintptr, name string) *Library {
	return &Library{handle: handle, name: name, path: pathOf(handle, name)}
}

// pathOf returns an absolute path without symbolic links, or name if the path is unknown.
func pathOf(handle uintptr, name string) string {
	path := loaderPath(handle)
	if path == "" {
		return name
	}

	resolved, err := filepath.EvalSymlinks(path)
	if err == nil {
		path = resolved
	}

	absolute, err := filepath.Abs(path)
	if err != nil {
		return name
	}

	return absolute
}

// loaderPath returns the path that the dynamic loader has stored for a library, or "" if the path
// is unknown.
func loaderPath(handle uintptr) string {
	dlinfo, exists := FindDefault("dlinfo")
	if !exists {
		return ""
	}

	const rtldLinkMap = 2 // RTLD_DI_LINKMAP of glibc
	cell := NewCell(uintptr(0))
	status := int32(dlinfo.Call(handle, rtldLinkMap, cell.Address()))
	address := cell.Take() // of struct link_map
	if status != 0 || address == 0 {
		return ""
	}

	type linkMapStart struct {
		_    uintptr // l_addr
		path uintptr // l_name
	}
	linkMap := Read[linkMapStart](address)
	return GoString(linkMap.path)
}

// Path returns an absolute path without symbolic links, or Name if the path is unknown.
func (l *Library) Path() string { return l.path }

// Name returns the name that Open or FindLoaded found.
func (l *Library) Name() string { return l.name }

// Find returns a function that the library or one of its dependencies exports.
func (l *Library) Find(name string) (Symbol, bool) { return find(l.handle, name) }

// FindDefault returns a function that RTLD_DEFAULT finds, for example in libc.
func FindDefault(name string) (Symbol, bool) { return find(purego.RTLD_DEFAULT, name) }

func find(handle uintptr, name string) (Symbol, bool) {
	// purego calls dlsym and then dlerror, which returns the last error of the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	address, err := purego.Dlsym(handle, name)
	return Symbol(address), err == nil
}
