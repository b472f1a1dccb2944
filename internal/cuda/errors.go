package cuda

import (
	"errors"
	"fmt"
)

// ErrNoDriver is returned by Load when there is no libcuda, or one that is too old.
var ErrNoDriver = errors.New("no CUDA driver")

// Code is the result of a call: CUresult of cuda.h. It is an error so that errors.Is finds it in
// an *Error.
type Code int32

// The results that symmem tells apart, or explains.
const (
	Success                       Code = 0
	ErrInvalidValue               Code = 1
	ErrOutOfMemory                Code = 2
	ErrStubLibrary                Code = 34
	ErrNoDevice                   Code = 100
	ErrNotReady                   Code = 600
	ErrIllegalAddress             Code = 700
	ErrNotPermitted               Code = 800
	ErrNotSupported               Code = 801
	ErrSystemNotReady             Code = 802
	ErrSystemDriverMismatch       Code = 803
	ErrCompatNotSupportedOnDevice Code = 804
	ErrCaptureInvalidated         Code = 901
	ErrCaptureImplicit            Code = 906
	ErrCapturedEvent              Code = 907
)

func (c Code) Error() string { return fmt.Sprintf("CUDA result %d", int32(c)) }

// Is makes errors.Is find a want of memory under any error whose method OutOfMemory reports true,
// such as ErrOutOfMemory of package driver, which this package does not know.
func (c Code) Is(target error) bool {
	memory, ok := target.(interface{ OutOfMemory() bool })
	return ok && memory.OutOfMemory() && c == ErrOutOfMemory
}

// Error is a call that CUDA refused, or that reported the failure of earlier work.
type Error struct {
	// Call is the function's name as libcuda exports it.
	Call string
	// Code is its result.
	Code Code
	// Name and Text are what CUDA calls the result, such as CUDA_ERROR_OUT_OF_MEMORY and
	// "out of memory"; empty if the driver does not know it.
	Name, Text string
}

func (e *Error) Error() string {
	if e.Name == "" {
		return fmt.Sprintf("%s: %v", e.Call, e.Code)
	}
	return fmt.Sprintf("%s: %s (%d): %s", e.Call, e.Name, int32(e.Code), e.Text)
}

// Unwrap makes errors.Is find the code.
func (e *Error) Unwrap() error { return e.Code }

// MissingError is a call of a function that the installed driver does not have.
type MissingError struct {
	// Function is its name; Path is the library.
	Function, Path string
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("%s has no %s: the driver is too old", e.Path, e.Function)
}

// Unwrap makes the error match ErrNotSupported.
func (e *MissingError) Unwrap() error { return ErrNotSupported }
