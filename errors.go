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
	// ErrClosed is returned by objects that have been closed.
	ErrClosed = driver.ErrClosed
	// ErrInvalid is returned for invalid arguments.
	ErrInvalid = driver.ErrInvalid
	// ErrUnsupported is returned for calls that the backend does not support.
	ErrUnsupported = driver.ErrUnsupported
)

// Errors about memory.
var (
	// ErrOutOfMemory means that the device, CUDA or the system is out of memory.
	ErrOutOfMemory = driver.ErrOutOfMemory
	// ErrSize is returned for sizes that are not positive or too large for any pool.
	ErrSize = alloc.ErrSize
	// ErrDoubleFree is returned by a second Free.
	ErrDoubleFree = alloc.ErrDoubleFree
	// ErrFreed is returned for a buffer that has been freed.
	ErrFreed = alloc.ErrFreed
	// ErrBusy is returned by Suspend while work on the named rank may use the memory.
	ErrBusy = driver.ErrBusy
	// ErrSuspended is returned between Suspend and Resume.
	ErrSuspended = driver.ErrSuspended
	// ErrForeign is returned for memory of another pool or runtime.
	ErrForeign = alloc.ErrForeign
)

// Errors of registration and collectives.
var (
	// ErrCapturing is returned by calls that are not permitted during a capture, which stays valid.
	ErrCapturing = driver.ErrCapturing
	// ErrOutOfRange means that a buffer is too short or a count too large. Nothing is launched.
	ErrOutOfRange = driver.ErrOutOfRange
	// ErrAborted is returned after Abort on any rank of the group.
	ErrAborted = driver.ErrAborted
	// ErrInterrupted is returned by waits that Options.Interrupted has ended.
	ErrInterrupted = driver.ErrInterrupted
)

// OutOfMemoryError is an ErrOutOfMemory of a pool that cannot map more memory. Sizes are in bytes.
type OutOfMemoryError struct {
	Requested int64 `json:"requested"`
	// Free is the total size of the stream's free blocks.
	Free        int64 `json:"free"`
	LargestFree int64 `json:"largest_free"`
	// Capacity is the pool's limit, or 0.
	Capacity int64 `json:"capacity"`
	// Device is nil if the pool has reached its capacity.
	Device error `json:"-"`
}

// Error lists the sizes.
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

// newOutOfMemoryError requires that device is nil if the pool is full.
func newOutOfMemoryError(err, device error) error {
	var allocErr *alloc.OutOfMemoryError
	if !errors.As(err, &allocErr) {
		return errors.Join(err, device)
	}
	return &OutOfMemoryError{
		Requested: allocErr.Requested, Free: allocErr.Free, LargestFree: allocErr.LargestFree,
		Capacity: allocErr.Capacity, Device: device,
	}
}

// Errors of waits, and of calls that differ between ranks.
type (
	// TimeoutError reports which ranks did not make a call in time. See [driver.TimeoutError].
	TimeoutError = driver.TimeoutError
	// AbsentError reports which ranks did not call Open, Join or Split. It may wrap a TimeoutError.
	// See [driver.AbsentError].
	AbsentError = driver.AbsentError
	// RankLostError reports ranks whose processes have ended or that have closed their Runtime. See
	// [driver.RankLostError].
	RankLostError = driver.RankLostError
	// PriorError reports that a rank skipped a call because its stream had failed before. See
	// [driver.PriorError].
	PriorError = driver.PriorError
	// DeadlockError reports that ranks wait for each other in distinct calls, or have left. See
	// [driver.DeadlockError].
	DeadlockError = driver.DeadlockError
	// MismatchError reports that the calls of a collective or of a message differ. If ranks find the
	// difference earlier, they return a DivergenceError. See [driver.MismatchError].
	MismatchError = driver.MismatchError
	// PeerError reports that other ranks failed first, for an unknown reason. See
	// [driver.PeerError].
	PeerError = driver.PeerError
	// MessageError reports that the Sends and Recvs of messages do not match. See
	// [driver.MessageError].
	MessageError = driver.MessageError
	// MessageEnds describes the Send and Recv of a message, or of all messages with one tag between
	// two ranks. See [driver.MessageEnds].
	MessageEnds = driver.MessageEnds
	// MessageFault names the kind of mismatch in a MessageError.
	MessageFault = driver.MessageFault
)

// The kinds of mismatch in a MessageError.
const (
	MessagesUnmatched  = driver.MessagesUnmatched
	MessagesOutOfStep  = driver.MessagesOutOfStep
	MessagesDiffer     = driver.MessagesDiffer
	MessageTypesDiffer = driver.MessageTypesDiffer
	SplitsDiffer       = driver.SplitsDiffer
)

func asAbsentError(err error) error {
	var absent *rendezvous.AbsentError
	if !errors.As(err, &absent) {
		return err
	}
	return &absentErrorWithText{
		AbsentError{InCall: "meeting all ranks", Ranks: absent.Ranks, Err: err},
	}
}

// absentErrorWithText keeps the text of the wrapped error, which names the ranks and the store.
type absentErrorWithText struct{ AbsentError }

func (e *absentErrorWithText) Error() string { return e.Err.Error() }

func (e *absentErrorWithText) As(target any) bool {
	if absent, ok := target.(**AbsentError); ok {
		*absent = &e.AbsentError
		return true
	}
	return e.AbsentError.As(target)
}

// joinWithoutDuplicates drops errors with the same text: one cause often prevents several releases.
func joinWithoutDuplicates(errs ...error) error {
	var distinct []error
	seen := map[string]bool{}
	for _, err := range splitJoined(errors.Join(errs...)) {
		if text := err.Error(); !seen[text] {
			seen[text] = true
			distinct = append(distinct, err)
		}
	}
	return errors.Join(distinct...)
}

// splitJoined undoes errors.Join.
func splitJoined(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	joinedAgain := errors.Join(joined.Unwrap()...)
	if joinedAgain == nil || joinedAgain.Error() != err.Error() {
		return []error{err} // not a result of errors.Join
	}
	var all []error
	for _, part := range joined.Unwrap() {
		all = append(all, splitJoined(part)...)
	}
	return all
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrInvalid)
}
