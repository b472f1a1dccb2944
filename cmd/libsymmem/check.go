package main

// #include "shim.h"
import "C"

import (
	"fmt"

	"symmem"
)

// The functions of this file verify that all ranks of a group make equal requests and use equal
// values. Errors show the call site of each rank, such as "model.py:120". The parameter site is a
// number from goSite, or 0 if the call site is unknown.

// goCheck implements symmem_check.
//
//export goCheck
func goCheck(group C.uint64_t) C.int {
	return guard(func() error { return library.Check(uint64(group)) })
}

// goSetCheck implements symmem_set_check.
//
//export goSetCheck
func goSetCheck(level C.int) C.int {
	return guard(func() error { return library.SetCheck(int(level)) })
}

// goNote implements symmem_note. It adds a note to the history of a pool, so that later checks
// compare the note between ranks. The caller defines the kinds of notes.
//
//export goNote
func goNote(pool C.int, kind, value C.int64_t, site C.uint32_t) C.int {
	return guard(func() error {
		return library.Note(int(pool), int64(kind), int64(value), uint32(site))
	})
}

// goSite implements symmem_site. It sets *site to the number of a call site.
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

// goValue implements symmem_value. An operation such as a sum replaces *number with the result. A
// comparison leaves *number unchanged.
//
//export goValue
func goValue(value *C.struct_symmem_value, site C.uint32_t, number *C.int64_t) C.int {
	return guard(func() error {
		if value == nil {
			return nullPointerError("the struct symmem_value")
		}

		if number == nil {
			return nullPointerError("the number")
		}

		if value.name_length > C.SYMMEM_VALUE_NAME {
			return fmt.Errorf("the name of a value has %d bytes; the maximum is %d: %w",
				value.name_length, C.SYMMEM_VALUE_NAME, symmem.ErrInvalid)
		}

		if value.site != 0 {
			site = value.site // takes precedence over the thread's call site
		}

		name := C.GoStringN(&value.name[0], C.int(value.name_length))
		result, err := library.CombineNumber(uint64(value.group), int(value.operation), name,
			int64(*number), uint32(site))
		if err != nil {
			return err
		}

		isComparison := value.operation == C.SYMMEM_VALUE_AGREE ||
			value.operation == C.SYMMEM_VALUE_AGREE_FLOAT
		if !isComparison {
			*number = C.int64_t(result)
		}

		return nil
	})
}

// goAgreeString implements symmem_agree_string. It fails if the ranks pass different texts for the
// same name.
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

// goStep implements symmem_step. It fails if the ranks describe the step differently, or if they
// have called different numbers of collectives since the previous step.
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
