package symmem

import (
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/alloc"
	"symmem/internal/rendezvous"
)

// Errors that any call may return. They are wrapped; use errors.Is.
var (
	ErrClosed      = driver.ErrClosed      // the object has been closed
	ErrInvalid     = driver.ErrInvalid     // an argument is invalid
	ErrUnsupported = driver.ErrUnsupported // the backend does not support the call
)

// Errors about memory.
var (
	ErrOutOfMemory = driver.ErrOutOfMemory // the device, CUDA or the system is out of memory
	ErrSize        = alloc.ErrSize         // a size is not positive, or too large for any pool
	ErrDoubleFree  = alloc.ErrDoubleFree   // Free was called twice
	ErrFreed       = alloc.ErrFreed        // a freed buffer was used
	ErrBusy        = driver.ErrBusy        // unfinished work may use the memory
	ErrSuspended   = driver.ErrSuspended   // the pool or group must be resumed first
	ErrForeign     = alloc.ErrForeign      // the memory is not from this pool or runtime
)

// Errors of registration and collectives.
var (
	ErrCapturing   = driver.ErrCapturing   // the call is not permitted during a capture
	ErrOutOfRange  = driver.ErrOutOfRange  // a buffer is too short or a count is too large
	ErrAborted     = driver.ErrAborted     // a rank of the group has called Abort
	ErrInterrupted = driver.ErrInterrupted // Options.Interrupted has ended the wait
)

// OutOfMemoryError reports that a pool cannot map more memory. It matches ErrOutOfMemory. Sizes are
// in bytes.
type OutOfMemoryError struct {
	Requested int64 `json:"requested"`
	// Free is the total size of the free blocks of the allocation's stream. LargestFree is the size of
	// the largest.
	Free        int64 `json:"free"`
	LargestFree int64 `json:"largest_free"`
	// Capacity is the pool's limit, or 0 if it has none.
	Capacity int64 `json:"capacity"`
	// Device is the device's error, or nil if the pool has reached its capacity.
	Device error `json:"-"`
}

// Error lists the sizes and the device's error.
func (e *OutOfMemoryError) Error() string {
	limit := "no capacity set"
	if e.Capacity > 0 {
		limit = fmt.Sprintf("capacity %d", e.Capacity)
	}

	text := fmt.Sprintf("out of memory: requested %d bytes, free %d, largest free block %d, %s",
		e.Requested, e.Free, e.LargestFree, limit)
	if e.Device != nil {
		text += ": " + e.Device.Error()
	}

	return text
}

// Is matches ErrOutOfMemory.
func (e *OutOfMemoryError) Is(target error) bool { return target == ErrOutOfMemory }

// Unwrap returns the device's error.
func (e *OutOfMemoryError) Unwrap() error { return e.Device }

// newOutOfMemoryError converts an alloc.OutOfMemoryError and adds deviceErr, which may be nil. It
// joins an err of another type with deviceErr.
func newOutOfMemoryError(err, deviceErr error) error {
	var allocErr *alloc.OutOfMemoryError
	if !errors.As(err, &allocErr) {
		return errors.Join(err, deviceErr)
	}

	return &OutOfMemoryError{
		Requested: allocErr.Requested, Free: allocErr.Free, LargestFree: allocErr.LargestFree,
		Capacity: allocErr.Capacity, Device: deviceErr,
	}
}

// Errors of waits, and of calls that differ between ranks. Package driver documents them in full.
type (
	// TimeoutError names the ranks that did not make a call in time. See [driver.TimeoutError].
	TimeoutError = driver.TimeoutError
	// AbsentError names the ranks that did not call Open, Join or Split. It may wrap a TimeoutError.
	// See [driver.AbsentError].
	AbsentError = driver.AbsentError
	// RankLostError names ranks whose processes have ended, or whose Runtimes have been closed. See
	// [driver.RankLostError].
	RankLostError = driver.RankLostError
	// PriorError reports that a rank skipped a call because the stream had already failed. See
	// [driver.PriorError].
	PriorError = driver.PriorError
	// DeadlockError reports ranks that have left the group or wait for each other in different calls.
	// See [driver.DeadlockError].
	DeadlockError = driver.DeadlockError
	// MismatchError reports a collective or message whose arguments differ between ranks. If this is
	// found before the call is queued, it is a DivergenceError. See [driver.MismatchError].
	MismatchError = driver.MismatchError
	// PeerError reports that other ranks failed first. See [driver.PeerError].
	PeerError = driver.PeerError
	// MessageError reports Sends and Recvs that do not match. See [driver.MessageError].
	MessageError = driver.MessageError
	// MessageEnds describes both ends of one message, or of all messages with one tag between two
	// ranks. See [driver.MessageEnds].
	MessageEnds = driver.MessageEnds
	// MessageFault names the kind of mismatch in a MessageError. See [driver.MessageFault].
	MessageFault = driver.MessageFault
)

// The kinds of mismatch in a MessageError. See [driver.MessageFault].
const (
	MessagesUnmatched  = driver.MessagesUnmatched
	MessagesOutOfStep  = driver.MessagesOutOfStep
	MessagesDiffer     = driver.MessagesDiffer
	MessageTypesDiffer = driver.MessageTypesDiffer
	SplitsDiffer       = driver.SplitsDiffer
)

// toAbsentError converts a rendezvous.AbsentError to an AbsentError with the same text. It returns
// other errors unchanged.
func toAbsentError(err error) error {
	var absent *rendezvous.AbsentError
	if !errors.As(err, &absent) {
		return err
	}

	converted := AbsentError{InCall: "meeting all ranks", Ranks: absent.Ranks, Err: err}
	return &absentErrorWithText{converted}
}

// absentErrorWithText is an AbsentError with the text of its Err.
type absentErrorWithText struct{ AbsentError }

func (e *absentErrorWithText) Error() string { return e.Err.Error() }

// As lets errors.As find the embedded AbsentError.
func (e *absentErrorWithText) As(target any) bool {
	if absent, ok := target.(**AbsentError); ok {
		*absent = &e.AbsentError
		return true
	}

	return e.AbsentError.As(target)
}

// joinWithoutDuplicates keeps one error of each text.
func joinWithoutDuplicates(errs ...error) error {
	var distinct []error
	seen := map[string]bool{}
	for _, err := range splitJoined(errors.Join(errs...)) {
		text := err.Error()
		if seen[text] {
			continue
		}

		seen[text] = true
		distinct = append(distinct, err)
	}

	return errors.Join(distinct...)
}

// splitJoined undoes errors.Join, recursively.
func splitJoined(err error) []error {
	if err == nil {
		return nil
	}

	wrapper, hasParts := err.(interface{ Unwrap() []error })
	if !hasParts {
		return []error{err}
	}

	parts := wrapper.Unwrap()
	joined := errors.Join(parts...)
	isJoined := joined != nil && joined.Error() == err.Error()
	if !isJoined { // for example, fmt.Errorf with several %w
		return []error{err}
	}

	var all []error
	for _, part := range parts {
		all = append(all, splitJoined(part)...)
	}

	return all
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrInvalid)
}
