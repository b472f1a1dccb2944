package main

// #include "shim.h"
import "C"

//export goCheck
func goCheck(group C.uint64_t) C.int {
	return guarded(func() error { return library.Check(uint64(group)) })
}

//export goSetCheck
func goSetCheck(level C.int) C.int {
	return guarded(func() error { return library.SetCheck(int(level)) })
}

//export goNote
func goNote(pool C.int, kind, value C.int64_t, site C.uint32_t) C.int {
	return guarded(func() error {
		return library.Note(int(pool), int64(kind), int64(value), uint32(site))
	})
}

//export goSite
func goSite(length C.size_t, text *C.char, site *C.uint32_t) C.int {
	return guarded(func() error {
		name, err := textOf(length, text)
		if err != nil {
			return err
		}
		if site == nil {
			return missing("the site")
		}
		number, err := library.Site(name)
		if err == nil {
			*site = C.uint32_t(number)
		}
		return err
	})
}
