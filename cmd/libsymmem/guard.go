package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"

	"symmem"
	"symmem/cmd/libsymmem/internal/binding"
)

// guarded makes a call and stores its error for the thread. A panic must not cross into C.
func guarded(call func() error) C.int {
	return result(binding.Recovering(call))
}

type integer interface {
	~int | ~int32 | ~uint32 | ~uint64 | ~uintptr
}

// stored makes a call and writes the result to an address passed by C.
func stored[To, From integer](to *To, what string, call func() (From, error)) C.int {
	return guarded(func() error {
		if to == nil {
			return missing(what)
		}
		value, err := call()
		if err == nil {
			*to = To(value)
		}
		return err
	})
}

// result returns the code of an error, and stores its text for the thread.
func result(err error) C.int {
	if err == nil {
		return C.SYMMEM_OK
	}
	code := binding.CodeOf(err)
	text, detail := code.Words(err), binding.Detail(code, err)
	C.symmem_note_error(C.int(code),
		C.size_t(len(text)), (*C.char)(unsafe.Pointer(unsafe.StringData(text))),
		C.size_t(len(detail)), (*C.char)(unsafe.Pointer(unsafe.StringData(detail))))
	return C.int(code)
}

// maxText bounds texts passed by callers: options, names, call sites.
const maxText = 1 << 20

// textOf copies a text passed by C.
func textOf(length C.size_t, text *C.char) (string, error) {
	if length == 0 {
		return "", nil
	}
	if text == nil || length > maxText {
		return "", fmt.Errorf("text of %d bytes at %p: %w", length, text, symmem.ErrInvalid)
	}
	return C.GoStringN(text, C.int(length)), nil
}

// give copies a text to a buffer passed by C, as described in symmem.h.
func give(size C.size_t, to *C.char, length *C.size_t, compose func() (string, error)) C.int {
	code := C.int(C.SYMMEM_OK)
	failed := guarded(func() error {
		text, err := compose()
		if err != nil {
			return err
		}
		if length == nil && to == nil {
			return missing("the buffer for the text and its length")
		}
		code = C.symmem_give(C.size_t(len(text)),
			(*C.char)(unsafe.Pointer(unsafe.StringData(text))), size, to, length)
		return nil
	})
	if failed != C.SYMMEM_OK {
		return failed
	}
	return code
}

// missing returns the error for a null pointer.
func missing(what string) error {
	return fmt.Errorf("%s is a null pointer: %w", what, symmem.ErrInvalid)
}
