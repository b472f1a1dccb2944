package cuda

import (
	"errors"
	"fmt"
)

// ErrNoDriver is returned by Load if there is no libcuda, or if it is too old.
var ErrNoDriver = errors.New("no CUDA driver")

// Code is the result of a call (CUresult). As an error, it matches an *Error in errors.Is.
type Code int32

// The codes that symmem handles or explains.
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
	ErrCaptureUnsupported         Code = 900
	ErrCaptureInvalidated         Code = 901
	ErrCaptureImplicit            Code = 906
	ErrCapturedEvent              Code = 907
)

func (c Code) Error() string { return fmt.Sprintf("CUDA result %d", int32(c)) }

// Is makes ErrOutOfMemory match the error of the same name in package driver.
func (c Code) Is(target error) bool {
	memory, ok := target.(interface{ OutOfMemory() bool })
	return ok && memory.OutOfMemory() && c == ErrOutOfMemory
}

// Error reports a failed call, or a failure of earlier work that CUDA reported in this call.
type Error struct {
	Call string // the C function's name
	Code Code
	// Name and Text are CUDA's name and description of the result, or empty.
	Name, Text string
}

func (e *Error) Error() string {
	if e.Name == "" {
		return fmt.Sprintf("%s: %v", e.Call, e.Code)
	}

	return fmt.Sprintf("%s: %s (%d): %s", e.Call, e.Name, int32(e.Code), e.Text)
}

// Unwrap returns the code.
func (e *Error) Unwrap() error { return e.Code }

// MissingError is returned for a function that the installed driver lacks.
type MissingError struct {
	Function string
	Path     string // of the library
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("%s has no %s: the driver is too old", e.Path, e.Function)
}

// Unwrap makes the error match ErrNotSupported.
func (e *MissingError) Unwrap() error { return ErrNotSupported }
