package cublas

import "fmt"

// Status is the result of a call: cublasStatus_t of cublas_api.h. It is an error so that errors.Is
// finds it in an *Error.
type Status int32

// The results.
const (
	Success            Status = 0
	ErrNotInitialized  Status = 1
	ErrAllocFailed     Status = 3
	ErrInvalidValue    Status = 7
	ErrArchMismatch    Status = 8
	ErrMappingError    Status = 11
	ErrExecutionFailed Status = 13
	ErrInternal        Status = 14
	ErrNotSupported    Status = 15
	ErrLicense         Status = 16
)

var texts = map[Status]string{
	Success: "success", ErrNotInitialized: "not initialized", ErrAllocFailed: "out of memory",
	ErrInvalidValue: "invalid value", ErrArchMismatch: "the GPU is too old",
	ErrMappingError: "no access to memory", ErrExecutionFailed: "the kernel did not run",
	ErrInternal: "internal error", ErrNotSupported: "not supported", ErrLicense: "no license",
}

// Error names the status.
func (s Status) Error() string {
	if text, ok := texts[s]; ok {
		return text
	}
	return fmt.Sprintf("status %d", int32(s))
}

// Error is a call that failed.
type Error struct {
	// Call is the function's name, Status what it returned.
	Call   string
	Status Status
}

// Error names the call and the status.
func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s (%d)", e.Call, e.Status.Error(), int32(e.Status))
}

// Unwrap gives the status.
func (e *Error) Unwrap() error { return e.Status }
