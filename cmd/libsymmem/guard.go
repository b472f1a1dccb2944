package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	"symmem"
	"symmem/cmd/libsymmem/internal/binding"
)

// Functions exported to C return SYMMEM_OK or an error code, and store the error itself for
// symmem_last_error. A function that sets an integer, such as goWorld(group *C.uint64_t), calls
// store. A function that fills a text buffer calls copyText. All others call guard.

// guard runs call, stores its error for the calling thread, and returns the error's code. It
// converts a panic to an error, because a panic must not reach C.
func guard(call func() error) C.int {
	err := binding.CatchPanic(call)
	return storeError(err)
}

// storeError stores err, which may be nil, for the calling thread and returns its code.
func storeError(err error) C.int {
	if err == nil {
		return C.SYMMEM_OK
	}

	code := binding.CodeOf(err)
	text := code.Message(err)
	detail := binding.Detail(code, err)
	// symmem_note_error copies both texts, so C retains no Go memory.
	C.symmem_note_error(C.int(code),
		C.size_t(len(text)), (*C.char)(unsafe.Pointer(unsafe.StringData(text))),
		C.size_t(len(detail)), (*C.char)(unsafe.Pointer(unsafe.StringData(detail))))
	return C.int(code)
}

type integer interface {
	~int | ~int32 | ~uint32 | ~uint64 | ~uintptr
}

// store runs call in guard and stores the result in *dst. resultName, such as "the group", is for
// the error if dst is null.
func store[D, S integer](dst *D, resultName string, call func() (S, error)) C.int {
	return guard(func() error {
		if dst == nil {
			return nullPointerError("the address for " + resultName)
		}

		value, err := call()
		if err != nil {
			return err
		}

		*dst = D(value)
		return nil
	})
}

func nullPointerError(argumentName string) error {
	return fmt.Errorf("%s is a null pointer: %w", argumentName, symmem.ErrInvalid)
}

// maxTextBytes bounds the memory that textOf reads if a length is invalid.
const maxTextBytes = 1 << 20

// textOf copies a string of length bytes. If length is 0, text may be null.
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

// copyText runs compose in guard, copies the text to the buffer dst of capacity bytes, and sets
// *length to the length of the whole text in bytes. If the buffer is too short, copyText returns
// SYMMEM_ERR_SHORT, but stores no error for the thread.
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
