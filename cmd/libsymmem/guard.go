package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	"symmem"
	"symmem/cmd/libsymmem/internal/binding"
)

// C calls functions of symmem.h, which are implemented by Go functions that return a code. Suppose
// that C calls symmem_world(&group), whose Go function is goWorld:
//
//   - goWorld calls store with the address of group, and with library.World, which returns a number
//     or an error.
//   - If there is no error, store stores the number in group, and returns SYMMEM_OK.
//   - Otherwise, the error is stored for the calling thread, so that C can read it with
//     symmem_last_error. store returns the code of the error: SYMMEM_ERR_NOT_OPEN, for example.
//
// copyText stores a text instead of a number. Functions with other results call guard, and store
// the results themselves.

// guard runs call and returns the code of its error, which it stores for the calling thread. A
// panic must not reach C, so guard converts it to an error.
func guard(call func() error) C.int {
	err := binding.CatchPanic(call)
	return storeError(err)
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

type integer interface {
	~int | ~int32 | ~uint32 | ~uint64 | ~uintptr
}

// store runs call in guard and stores the result at dst, an address from C. resultName names the
// result in errors, as in "the group".
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

// nullPointerError returns the error for an argument from C that is a null pointer.
func nullPointerError(argumentName string) error {
	return fmt.Errorf("%s is a null pointer: %w", argumentName, symmem.ErrInvalid)
}

// maxTextBytes limits how much memory a wrong length can make this library read.
const maxTextBytes = 1 << 20

// textOf copies a string of C that has the given length in bytes. If the length is 0, text may be
// null.
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

// copyText runs compose in guard and copies the text that it returns to dst, a buffer of C with
// capacity bytes. It stores the length of the text at length.
//
// If the buffer is too short, copyText returns SYMMEM_ERR_SHORT, but stores no error for the
// thread.
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
