package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	"symmem"
	"symmem/cmd/libsymmem/internal/binding"
)

// guard runs call and returns SYMMEM_OK or the code of the error. It stores the error for
// symmem_last_error. A panic becomes an error, because it must not reach C.
func guard(call func() error) C.int {
	err := binding.CatchPanic(call)
	return storeError(err)
}

// storeError returns the code of err. Unless err is nil, it stores copies of its texts for the
// calling thread.
func storeError(err error) C.int {
	if err == nil {
		return C.SYMMEM_OK
	}

	code := binding.CodeOf(err)
	text := code.Message(err)
	detail := binding.Detail(code, err) // JSON
	C.symmem_note_error(C.int(code),
		C.size_t(len(text)), (*C.char)(unsafe.Pointer(unsafe.StringData(text))),
		C.size_t(len(detail)), (*C.char)(unsafe.Pointer(unsafe.StringData(detail))))
	return C.int(code)
}

type integer interface {
	~int | ~int32 | ~uint32 | ~uint64 | ~uintptr
}

// store runs call in guard and stores the result in *dst. If dst is null, the error contains
// resultName, such as "the group".
func store[D, S integer](dst *D, resultName string, call func() (S, error)) C.int {
	return guard(func() error {
		if dst == nil {
			return nullPointerError("the address for " + resultName)
		}

		result, err := call()
		if err != nil {
			return err
		}

		*dst = D(result)
		return nil
	})
}

func nullPointerError(argumentName string) error {
	return fmt.Errorf("%s is a null pointer: %w", argumentName, symmem.ErrInvalid)
}

// maxTextBytes limits the strings of callers, so that an uninitialized length is an error.
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

// copyText runs compose in guard, copies its result to dst, which has space for capacity bytes, and
// sets *length to the length of the result. Either pointer can be null. If dst is too short,
// copyText returns SYMMEM_ERR_SHORT, but stores no error.
func copyText(
	capacity C.size_t, dst *C.char, length *C.size_t, compose func() (string, error),
) C.int {
	copyCode := C.int(C.SYMMEM_OK)
	guardCode := guard(func() error {
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
	if guardCode != C.SYMMEM_OK {
		return guardCode
	}

	return copyCode
}
