package main

// #include "shim.h"
import "C"

// goScopeEnd stores the value of the counter of pending memory at seen, unless seen is null.
//
//export goScopeEnd
func goScopeEnd(group, stream C.uint64_t, seen *C.int64_t) C.int {
	return guard(func() error {
		pendingCount, err := library.ScopeEnd(uint64(group), uintptr(stream))
		if err != nil {
			return err
		}
		if seen != nil {
			*seen = C.int64_t(pendingCount)
		}
		return nil
	})
}

//export goRegisterPending
func goRegisterPending(group C.uint64_t, pool C.int, stream C.uint64_t) C.int {
	return guard(func() error {
		return library.RegisterPending(uint64(group), int(pool), uintptr(stream))
	})
}

//export goAttach
func goAttach(
	group, comm C.uint64_t, length C.size_t, name *C.char, attachment *C.uint64_t,
) C.int {
	return store(attachment, "the attachment", func() (uint64, error) {
		text, err := textOf(length, name)
		if err != nil {
			return 0, err
		}
		return library.Attach(uint64(group), uintptr(comm), text)
	})
}

//export goDetach
func goDetach(attachment C.uint64_t, exists C.int) C.int {
	return guard(func() error { return library.Detach(uint64(attachment), exists != 0) })
}
