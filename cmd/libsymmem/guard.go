package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	"symmem"
	"symmem/cmd/libsymmem/internal/binding"
)

// guard runs call, stores its error for the calling thread and returns the error's code. It also
// catches panics, which must not reach C.
func guard(call func() error) C.int {
	return report(binding.CatchPanic(call))
}

type integer interface {
	~int | ~int32 | ~uint32 | ~uint64 | ~uintptr
}

// store runs call and stores the result at an address passed by C. If the address is null, it
// returns an error that contains name.
func store[D, S integer](dst *D, name string, call func() (S, error)) C.int {
	return guard(func() error {
		if dst == nil {
			return errNull(name)
		}
		value, err := call()
		if err == nil {
			*dst = D(value)
		}
		return err
	})
}

// report stores an error's text and details for the calling thread and returns the error's code.
func report(err error) C.int {
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

// maxText is the maximum length, in bytes, of a string that a caller passes.
const maxText = 1 << 20

func textOf(length C.size_t, text *C.char) (string, error) {
	if length == 0 {
		return "", nil
	}
	if text == nil || length > maxText {
		return "", fmt.Errorf("text of %d bytes at %p: %w", length, text, symmem.ErrInvalid)
	}
	return C.GoStringN(text, C.int(length)), nil
}

// copyText copies the text that compose returns into the caller's buffer, as symmem.h describes.
func copyText(size C.size_t, dst *C.char, length *C.size_t, compose func() (string, error)) C.int {
	code := C.int(C.SYMMEM_OK)
	status := guard(func() error {
		text, err := compose()
		if err != nil {
			return err
		}
		if length == nil && dst == nil {
			return errNull("the buffer for the text and its length")
		}
		code = C.symmem_give(C.size_t(len(text)),
			(*C.char)(unsafe.Pointer(unsafe.StringData(text))), size, dst, length)
		return nil
	})
	if status != C.SYMMEM_OK {
		return status
	}
	return code
}

func errNull(name string) error {
	return fmt.Errorf("%s is a null pointer: %w", name, symmem.ErrInvalid)
}
