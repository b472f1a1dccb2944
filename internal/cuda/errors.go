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
	Success                        Code = 0
	ErrInvalidValue                Code = 1
	ErrOutOfMemory                 Code = 2
	ErrNotInitialized              Code = 3
	ErrDeinitialized               Code = 4 // the process is exiting
	ErrStubLibrary                 Code = 34
	ErrDeviceUnavailable           Code = 46
	ErrNoDevice                    Code = 100
	ErrInvalidDevice               Code = 101
	ErrInvalidImage                Code = 200
	ErrInvalidContext              Code = 201
	ErrMapFailed                   Code = 205
	ErrUnmapFailed                 Code = 206
	ErrAlreadyMapped               Code = 208
	ErrNoBinaryForGPU              Code = 209
	ErrNotMapped                   Code = 211
	ErrECCUncorrectable            Code = 214
	ErrPeerAccessUnsupported       Code = 217
	ErrInvalidPTX                  Code = 218
	ErrNVLinkUncorrectable         Code = 220
	ErrUnsupportedPTXVersion       Code = 222
	ErrOperatingSystem             Code = 304
	ErrInvalidHandle               Code = 400
	ErrIllegalState                Code = 401
	ErrNotFound                    Code = 500
	ErrNotReady                    Code = 600
	ErrIllegalAddress              Code = 700
	ErrLaunchOutOfResources        Code = 701
	ErrLaunchTimeout               Code = 702
	ErrContextIsDestroyed          Code = 709
	ErrAssert                      Code = 710
	ErrHostMemoryAlreadyRegistered Code = 712
	ErrHostMemoryNotRegistered     Code = 713
	ErrHardwareStackError          Code = 714
	ErrIllegalInstruction          Code = 715
	ErrMisalignedAddress           Code = 716
	ErrInvalidAddressSpace         Code = 717
	ErrInvalidPC                   Code = 718
	ErrLaunchFailed                Code = 719
	ErrNotPermitted                Code = 800
	ErrNotSupported                Code = 801
	ErrSystemNotReady              Code = 802
	ErrSystemDriverMismatch        Code = 803
	ErrCompatNotSupportedOnDevice  Code = 804
	ErrCaptureUnsupported          Code = 900
	ErrCaptureInvalidated          Code = 901
	ErrCaptureMerge                Code = 902
	ErrCaptureUnmatched            Code = 903
	ErrCaptureUnjoined             Code = 904
	ErrCaptureIsolation            Code = 905
	ErrCaptureImplicit             Code = 906
	ErrCapturedEvent               Code = 907
	ErrCaptureWrongThread          Code = 908
	ErrTimeout                     Code = 909
	ErrGraphExecUpdateFailure      Code = 910
	ErrExternalDevice              Code = 911
	ErrUnknown                     Code = 999
)

func (c Code) Error() string { return fmt.Sprintf("CUDA result %d", int32(c)) }

// Is makes errors.Is find a want of memory under any error whose method OutOfMemory reports true,
// such as ErrOutOfMemory of package driver, which this package does not know.
func (c Code) Is(target error) bool {
	memory, ok := target.(interface{ OutOfMemory() bool })
	return ok && memory.OutOfMemory() && c == ErrOutOfMemory
}

// Fatal reports whether the context is lost: every later call on it gives the same result, and only
// a new process helps (cuda.h says of these "leaves the process in an inconsistent state").
func (c Code) Fatal() bool {
	switch c {
	case ErrIllegalAddress, ErrLaunchTimeout, ErrAssert, ErrHardwareStackError,
		ErrIllegalInstruction, ErrMisalignedAddress, ErrInvalidAddressSpace, ErrInvalidPC,
		ErrLaunchFailed, ErrECCUncorrectable, ErrNVLinkUncorrectable, ErrExternalDevice,
		ErrContextIsDestroyed:
		return true
	default:
		return false
	}
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
