package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	"symmem"
	"symmem/cmd/libsymmem/internal/binding"
)

// guard runs call, stores its error for the calling thread and returns the error's code. It
// catches panics, which must not reach C.
func guard(call func() error) C.int {
	return storeError(binding.CatchPanic(call))
}

type integer interface {
	~int | ~int32 | ~uint32 | ~uint64 | ~uintptr
}

// store runs call and stores the result at dst, which C passes. what names the result in errors.
func store[D, S integer](dst *D, what string, call func() (S, error)) C.int {
	return guard(func() error {
		if dst == nil {
			return errNull("the address for " + what)
		}
		value, err := call()
		if err == nil {
			*dst = D(value)
		}
		return err
	})
}

// storeError stores an error for the calling thread and returns the error's code.
func storeError(err error) C.int {
	if err == nil {
		return C.SYMMEM_OK
	}
	code := binding.CodeOf(err)
	text, detail := code.Message(err), binding.Detail(code, err)
	C.symmem_note_error(C.int(code),
		C.size_t(len(text)), (*C.char)(unsafe.Pointer(unsafe.StringData(text))),
		C.size_t(len(detail)), (*C.char)(unsafe.Pointer(unsafe.StringData(detail))))
	return C.int(code)
}

const maxTextBytes = 1 << 20

func textOf(length C.size_t, text *C.char) (string, error) {
	if length == 0 {
		return "", nil
	}
	if text == nil || length > maxTextBytes {
		return "", fmt.Errorf("a string of %d bytes at address %p: the maximum is %d bytes: %w",
			length, text, maxTextBytes, symmem.ErrInvalid)
	}
	return C.GoStringN(text, C.int(length)), nil
}

// copyText copies the text of compose to dst, a buffer of capacity bytes, and its length to length.
func copyText(
	capacity C.size_t, dst *C.char, length *C.size_t, compose func() (string, error),
) C.int {
	copyCode := C.int(C.SYMMEM_OK)
	composeCode := guard(func() error {
		text, err := compose()
		if err != nil {
			return err
		}
		if length == nil && dst == nil {
			return fmt.Errorf("the text buffer and the pointer to its length are both null: %w",
				symmem.ErrInvalid)
		}
		copyCode = C.symmem_give(C.size_t(len(text)),
			(*C.char)(unsafe.Pointer(unsafe.StringData(text))), capacity, dst, length)
		return nil
	})
	if composeCode != C.SYMMEM_OK {
		return composeCode
	}
	return copyCode
}

func errNull(what string) error {
	return fmt.Errorf("%s is a null pointer: %w", what, symmem.ErrInvalid)
}
