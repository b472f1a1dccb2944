package nccl

import (
	"errors"
	"fmt"
)

// ErrNoLibrary is returned by Load if it finds no libnccl.
var ErrNoLibrary = errors.New("no NCCL")

// ErrUnsupported is matched by every VersionError.
var ErrUnsupported = errors.New("not supported by this NCCL")

// Result is the result of a call (ncclResult_t). As an error, it matches an *Error in errors.Is.
type Result int32

// The results that symmem handles.
const (
	Success         Result = 0
	ErrInvalidUsage Result = 5
	ErrRemote       Result = 6 // a peer has failed
	ErrInProgress   Result = 7 // only for nonblocking communicators
)

func (r Result) Error() string { return fmt.Sprintf("NCCL result %d", int32(r)) }

// Error reports a failed call.
type Error struct {
	Call string // the C function's name
	Code Result
	Text string // NCCL's description of Code
	// Last is NCCL's last warning, which usually explains the error, but may come from another
	// thread's call.
	Last string
}

func (e *Error) Error() string {
	text := fmt.Sprintf("%s: %s (%d)", e.Call, e.Text, int32(e.Code))
	if e.Last != "" {
		text += ": " + e.Last
	}

	return text
}

// Unwrap returns the result.
func (e *Error) Unwrap() error { return e.Code }

// VersionError reports a function that the library lacks or that has a defect.
type VersionError struct {
	Call string // the C function's name
	Need int    // first version with the function
	Have int    // the library's version
	Path string // of the library
}

func (e *VersionError) Error() string {
	if e.Have >= e.Need {
		return fmt.Sprintf("%s (NCCL %s) has no %s", e.Path, VersionText(e.Have), e.Call)
	}

	return fmt.Sprintf("%s needs NCCL %s, and %s is %s",
		e.Call, VersionText(e.Need), e.Path, VersionText(e.Have))
}

func (e *VersionError) Unwrap() error { return ErrUnsupported }
