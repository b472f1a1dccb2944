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

//export goValue
func goValue(
	group C.uint64_t, operation C.int, length C.size_t, name *C.char, value C.int64_t,
	site C.uint32_t, result *C.int64_t,
) C.int {
	return guarded(func() error {
		text, err := textOf(length, name)
		if err != nil {
			return err
		}
		got, err := library.Value(uint64(group), int(operation), text, int64(value), uint32(site))
		if err == nil && result != nil {
			*result = C.int64_t(got)
		}
		return err
	})
}

//export goStep
func goStep(group C.uint64_t, length C.size_t, what *C.char, site C.uint32_t) C.int {
	return guarded(func() error {
		text, err := textOf(length, what)
		if err != nil {
			return err
		}
		return library.Step(uint64(group), text, uint32(site))
	})
}
