package main

// #include "shim.h"
import "C"

import (
	"fmt"

	"symmem"
)

// Exported functions implement symmem.h: goCheck implements symmem_check, for example.
// The parameter site is the number of a call site, or 0 if it is unknown.

// goCheck compares the allocations and frees in shared pools between the ranks of a group.
//
//export goCheck
func goCheck(group C.uint64_t) C.int {
	return guard(func() error { return library.Check(uint64(group)) })
}

//export goSetCheck
func goSetCheck(level C.int) C.int {
	return guard(func() error { return library.SetCheck(int(level)) })
}

// goNote adds a note to the history of a pool, for goCheck. The caller defines the kinds of notes.
//
//export goNote
func goNote(pool C.int, kind, value C.int64_t, site C.uint32_t) C.int {
	return guard(func() error {
		return library.Note(int(pool), int64(kind), int64(value), uint32(site))
	})
}

// goSite sets *site to the number of a call site, such as "model.py:120".
//
//export goSite
func goSite(length C.size_t, text *C.char, site *C.uint32_t) C.int {
	return store(site, "the call site", func() (uint32, error) {
		goText, err := textOf(length, text)
		if err != nil {
			return 0, err
		}

		return library.SiteNumber(goText)
	})
}

// goValue combines *number of all ranks by request.operation, and stores the result in *number.
// Comparisons leave *number unchanged. A nonzero request.site overrides site.
//
//export goValue
func goValue(request *C.struct_symmem_value, site C.uint32_t, number *C.int64_t) C.int {
	return guard(func() error {
		if request == nil {
			return nullPointerError("the struct symmem_value")
		}

		if number == nil {
			return nullPointerError("the number")
		}

		const maxNameBytes = C.SYMMEM_VALUE_NAME
		if request.name_length > maxNameBytes {
			return fmt.Errorf("the name of a value has %d bytes; the maximum is %d: %w",
				request.name_length, maxNameBytes, symmem.ErrInvalid)
		}

		if request.site != 0 {
			site = request.site
		}

		name := C.GoStringN(&request.name[0], C.int(request.name_length))
		result, err := library.CombineNumber(uint64(request.group), int(request.operation), name,
			int64(*number), uint32(site))
		if err != nil {
			return err
		}

		isComparison := request.operation == C.SYMMEM_VALUE_AGREE ||
			request.operation == C.SYMMEM_VALUE_AGREE_FLOAT
		if !isComparison {
			*number = C.int64_t(result)
		}

		return nil
	})
}

// goAgreeString fails if the texts of the ranks differ.
//
//export goAgreeString
func goAgreeString(
	group C.uint64_t, nameLength C.size_t, name *C.char, length C.size_t, text *C.char,
	site C.uint32_t,
) C.int {
	return guard(func() error {
		goName, err := textOf(nameLength, name)
		if err != nil {
			return err
		}

		goText, err := textOf(length, text)
		if err != nil {
			return err
		}

		_, err = library.CombineValue(uint64(group), symmem.ValueCall{
			Operation: symmem.ValueAgreeString, Name: goName, Text: goText,
		}, uint32(site))
		return err
	})
}

// goStep begins a step. It fails if the ranks pass different descriptions, or have made different
// numbers of collectives since the previous step.
//
//export goStep
func goStep(group C.uint64_t, length C.size_t, description *C.char, site C.uint32_t) C.int {
	return guard(func() error {
		goText, err := textOf(length, description)
		if err != nil {
			return err
		}

		_, err = library.CombineValue(uint64(group), symmem.ValueCall{
			Operation: symmem.ValueStep, Text: goText,
		}, uint32(site))
		return err
	})
}
