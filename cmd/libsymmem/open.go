package main

// #include "shim.h"
import "C"

import (
	"os"
	"strings"
	"unsafe"

	"symmem/cmd/libsymmem/internal/binding"
)

// Exported functions implement symmem.h: goOpen implements symmem_open, for example.

//export goOpen
func goOpen(length C.size_t, options *C.char) C.int {
	return guard(func() error {
		text, err := prepareOpen(length, options)
		if err != nil {
			return err
		}

		return library.Open(text)
	})
}

// goWorldOpen opens a world in addition to the main world.
//
//export goWorldOpen
func goWorldOpen(length C.size_t, options *C.char, world *C.uint64_t) C.int {
	return store(world, "the world", func() (uint64, error) {
		text, err := prepareOpen(length, options)
		if err != nil {
			return 0, err
		}

		return library.OpenWorld(text)
	})
}

// prepareOpen prepares the process for opening a world, and returns the options as JSON.
func prepareOpen(length C.size_t, options *C.char) ([]byte, error) {
	text, err := textOf(length, options)
	if err != nil {
		return nil, err
	}

	C.symmem_watch_exit()
	if err := importEnvironment(); err != nil {
		return nil, err
	}

	return []byte(text), nil
}

// importEnvironment updates Go's copy of the environment, which misses changes by C code.
func importEnvironment() error {
	entry := C.symmem_environment() // points into a null-terminated array of "NAME=value"
	for entry != nil && *entry != nil {
		name, value, _ := strings.Cut(C.GoString(*entry), "=")
		goValue, isSet := os.LookupEnv(name)
		isChanged := !isSet || goValue != value
		if name != "" && isChanged {
			if err := os.Setenv(name, value); err != nil {
				return err
			}
		}

		next := unsafe.Add(unsafe.Pointer(entry), unsafe.Sizeof(*entry))
		entry = (**C.char)(next)
	}

	return nil
}

//export goClose
func goClose(force C.int) C.int {
	return guard(func() error { return library.Close(force != 0) })
}

//export goWorldClose
func goWorldClose(world C.uint64_t, force C.int) C.int {
	return guard(func() error { return library.CloseWorld(uint64(world), force != 0) })
}

//export goIsOpen
func goIsOpen() C.int { return boolResult(library.IsOpen) }

//export goCallSites
func goCallSites() C.int { return boolResult(library.RecordsCallSites) }

// boolResult returns 1 if query returns true, and otherwise 0.
func boolResult(query func() bool) C.int {
	isTrue := false // also after a panic
	_ = binding.CatchPanic(func() error {
		isTrue = query()
		return nil
	})
	if isTrue {
		return 1
	}

	return 0
}

//export goDescribe
func goDescribe(capacity C.size_t, text *C.char, length *C.size_t) C.int {
	return copyText(capacity, text, length, library.Describe)
}

//export goWorldDescribe
func goWorldDescribe(world C.uint64_t, capacity C.size_t, text *C.char, length *C.size_t) C.int {
	return copyText(capacity, text, length, func() (string, error) {
		return library.DescribeWorld(uint64(world))
	})
}

//export goStats
func goStats(capacity C.size_t, text *C.char, length *C.size_t) C.int {
	return copyText(capacity, text, length, library.Stats)
}

//export goWorldStats
func goWorldStats(world C.uint64_t, capacity C.size_t, text *C.char, length *C.size_t) C.int {
	return copyText(capacity, text, length, func() (string, error) {
		return library.WorldStats(uint64(world))
	})
}

//export goWorldSetCheck
func goWorldSetCheck(world C.uint64_t, level C.int) C.int {
	return guard(func() error { return library.SetWorldCheck(uint64(world), int(level)) })
}

//export goWorldGroupOpen
func goWorldGroupOpen(
	world C.uint64_t, length C.size_t, name *C.char, count C.size_t, ranks *C.int32_t,
	timeoutMS C.int64_t, group *C.uint64_t,
) C.int {
	return store(group, "the group", func() (uint64, error) {
		groupName, rankList, err := groupArguments(length, name, count, ranks)
		if err != nil {
			return 0, err
		}

		return library.OpenGroupIn(uint64(world), groupName, rankList, int64(timeoutMS))
	})
}

// goTakeWarning copies the oldest warning, and removes it if it was copied.
//
//export goTakeWarning
func goTakeWarning(capacity C.size_t, text *C.char, length *C.size_t) C.int {
	code := C.int(C.SYMMEM_OK)
	library.TakeWarning(func(warning string) bool {
		code = copyText(capacity, text, length, func() (string, error) { return warning, nil })
		hasBuffer := text != nil && capacity > 0 // otherwise, the caller asks for the length
		isTaken := code == C.SYMMEM_OK && hasBuffer
		return isTaken
	})
	return code
}
