package nccl

import (
	"errors"
	"fmt"
)

// ErrNoLibrary is returned by Load when there is no libnccl, or it is not NCCL.
var ErrNoLibrary = errors.New("no NCCL")

// ErrUnsupported is matched by every VersionError.
var ErrUnsupported = errors.New("not supported by this NCCL")

// Result is the result of a call: ncclResult_t. It is an error so that errors.Is finds it in an
// *Error.
type Result int32

// The results.
const (
	Success         Result = 0
	ErrInvalidUsage Result = 5
	ErrRemote       Result = 6 // a peer has failed or is gone
	ErrInProgress   Result = 7 // only of communicators that do not block
)

func (r Result) Error() string { return fmt.Sprintf("NCCL result %d", int32(r)) }

// Error is a call that failed.
type Error struct {
	// Call is the function's name.
	Call string
	// Code is its result, and Text what NCCL calls that.
	Code Result
	Text string
	// Last is the last warning that NCCL gave, which mostly says what is wrong. It is the whole
	// process's, so with several threads it may be another call's.
	Last string
}

func (e *Error) Error() string {
	text := fmt.Sprintf("%s: %s (%d)", e.Call, e.Text, int32(e.Code))
	if e.Last != "" {
		text += ": " + e.Last
	}
	return text
}

// Unwrap makes errors.Is find the result.
func (e *Error) Unwrap() error { return e.Code }

// VersionError is a call of a function that the library lacks, or has with faults that make it
// useless here.
type VersionError struct {
	// Call is the function's name.
	Call string
	// Need is the first version that has it, and Have the library's, both as NCCL codes them.
	Need, Have int
	// Path is the library's file.
	Path string
}

func (e *VersionError) Error() string {
	if e.Have >= e.Need {
		return fmt.Sprintf("%s (NCCL %s) has no %s", e.Path, VersionText(e.Have), e.Call)
	}
	return fmt.Sprintf("%s needs NCCL %s, and %s is %s",
		e.Call, VersionText(e.Need), e.Path, VersionText(e.Have))
}

// Unwrap makes the error match ErrUnsupported.
func (e *VersionError) Unwrap() error { return ErrUnsupported }
