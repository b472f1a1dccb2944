package main

// #include "shim.h"
import "C"

import (
	"fmt"

	"symmem"
)

// The exported functions of this file implement functions of symmem.h with similar names: goCheck
// implements symmem_check. They return SYMMEM_OK or SYMMEM_ERR_*.
//
// Most of them compare what the ranks of a group do. If the ranks differ, the error shows where
// each rank made its call: the call sites, such as "model.py:120". goSite gives a call site a
// number. The other functions take this number as the argument site, which is 0 if the call site is
// unknown.

//export goCheck
func goCheck(group C.uint64_t) C.int {
	return guard(func() error { return library.Check(uint64(group)) })
}

//export goSetCheck
func goSetCheck(level C.int) C.int {
	return guard(func() error { return library.SetCheck(int(level)) })
}

// goNote adds value to the history of a pool. The caller chooses any number as kind, to tell values
// of different kinds apart. The histories of all ranks are compared later.
//
//export goNote
func goNote(pool C.int, kind, value C.int64_t, site C.uint32_t) C.int {
	return guard(func() error {
		return library.Note(int(pool), int64(kind), int64(value), uint32(site))
	})
}

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

// goValue combines or compares the ranks' numbers. *number is this rank's number. A combination,
// such as a sum, replaces it by the result. A comparison leaves it unchanged.
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
			site = value.site // it overrides the site of symmem_set_site
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

// goAgreeString compares a text between the ranks. Ranks compare the texts that have the same name.
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

// goStep begins a step of the program. It compares the ranks' descriptions of the step, and how
// many collectives each rank has called since the previous step.
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
