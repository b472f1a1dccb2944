package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	"symmem"
	"symmem/cmd/libsymmem/internal/binding"
)

// guard runs call and returns the code of its error: SYMMEM_OK or SYMMEM_ERR_*. It stores the
// error, which C callers read with symmem_last_error. It catches panics, which must not reach C.
func guard(call func() error) C.int {
	err := binding.CatchPanic(call)
	return storeError(err)
}

type integer interface {
	~int | ~int32 | ~uint32 | ~uint64 | ~uintptr
}

// store runs call in guard and stores the result at dst, an address from C. what names the result
// in errors.
func store[D, S integer](dst *D, what string, call func() (S, error)) C.int {
	return guard(func() error {
		if dst == nil {
			return nullPointerError("the address for " + what)
		}
		value, err := call()
		if err != nil {
			return err
		}
		*dst = D(value)
		return nil
	})
}

// storeError stores an error for the calling thread and returns the error's code.
func storeError(err error) C.int {
	if err == nil {
		return C.SYMMEM_OK
	}
	code := binding.CodeOf(err)
	text := code.Message(err)
	detail := binding.Detail(code, err)
	// The C function copies the texts.
	C.symmem_note_error(C.int(code),
		C.size_t(len(text)), (*C.char)(unsafe.Pointer(unsafe.StringData(text))),
		C.size_t(len(detail)), (*C.char)(unsafe.Pointer(unsafe.StringData(detail))))
	return C.int(code)
}

// maxTextBytes limits how much memory a wrong length can make this library read.
const maxTextBytes = 1 << 20

// textOf copies a string of C that need not end with a zero byte. If length is 0, text may be null.
func textOf(length C.size_t, text *C.char) (string, error) {
	if length == 0 {
		return "", nil
	}
	if text == nil {
		return "", fmt.Errorf("a string of %d bytes is a null pointer: %w", length, symmem.ErrInvalid)
	}
	if length > maxTextBytes {
		return "", fmt.Errorf("a string has %d bytes; the maximum is %d: %w", length, maxTextBytes,
			symmem.ErrInvalid)
	}
	return C.GoStringN(text, C.int(length)), nil
}

// copyText calls compose and copies its text to dst, a buffer of capacity bytes. It stores the
// text's length at length. If the buffer is too short, copyText returns SYMMEM_ERR_SHORT, but does
// not store an error for the thread.
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

// nullPointerError returns the error for a null pointer from C. what names the argument.
func nullPointerError(what string) error {
	return fmt.Errorf("%s is a null pointer: %w", what, symmem.ErrInvalid)
}
