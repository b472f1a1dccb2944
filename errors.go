package symmem

import (
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/alloc"
	"symmem/internal/rendezvous"
)

// Errors that can come from any call. They are wrapped; use errors.Is.
var (
	// ErrClosed is returned by everything that was closed.
	ErrClosed = driver.ErrClosed
	// ErrInvalid is returned for arguments that are never valid.
	ErrInvalid = driver.ErrInvalid
	// ErrUnsupported is returned for what the backend cannot do.
	ErrUnsupported = driver.ErrUnsupported
)

// Errors of memory.
var (
	// ErrOutOfMemory matches every OutOfMemoryError, and any other out-of-memory failure of the
	// device, of CUDA or of the system.
	ErrOutOfMemory = driver.ErrOutOfMemory
	// ErrSize is returned for a size that is zero, negative or too large for any pool.
	ErrSize = alloc.ErrSize
	// ErrDoubleFree is returned for a buffer that was freed before.
	ErrDoubleFree = alloc.ErrDoubleFree
	// ErrFreed is returned for the use of a buffer that was freed.
	ErrFreed = alloc.ErrFreed
	// ErrForeign is returned for a buffer that is not of the pool.
	ErrForeign = alloc.ErrForeign
)

// Errors of registration and collectives.
var (
	// ErrCapturing is returned by what may not happen while a stream is captured, before the
	// backend is touched. The capture is still good.
	ErrCapturing = driver.ErrCapturing
	// ErrOutOfRange is returned before launch when a buffer is too short for a collective, or a
	// count too large for any.
	ErrOutOfRange = driver.ErrOutOfRange
	// ErrAborted is returned by a group after Abort on any of its ranks.
	ErrAborted = driver.ErrAborted
	// ErrInterrupted is the cause of a wait that Options.Interrupted has ended.
	ErrInterrupted = driver.ErrInterrupted
)

// OutOfMemoryError says that a request fits neither the free memory of its stream nor what may
// still be mapped. errors.Is finds it as ErrOutOfMemory.
type OutOfMemoryError struct {
	// Requested is the size that the caller asked for, in bytes.
	Requested int64 `json:"requested"`
	// Free is the total size of the stream's free blocks, and LargestFree the size of the largest, in
	// bytes.
	Free        int64 `json:"free"`
	LargestFree int64 `json:"largest_free"`
	// Capacity is the limit of the pool in bytes, 0 if it has none.
	Capacity int64 `json:"capacity"`
	// Device is why the device mapped no more; nil where the pool's capacity was the limit. It is
	// not encoded as JSON.
	Device error `json:"-"`
}

// Error names the figures in bytes, and what to do.
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

// Is reports whether target is ErrOutOfMemory.
func (e *OutOfMemoryError) Is(target error) bool { return target == ErrOutOfMemory }

// Unwrap returns why the device mapped no more.
func (e *OutOfMemoryError) Unwrap() error { return e.Device }

// exhausted converts an error of the allocator's core. device is the reason why the device mapped
// no more, if it refused.
func exhausted(err, device error) error {
	var full *alloc.OutOfMemoryError
	if !errors.As(err, &full) {
		return errors.Join(err, device)
	}
	return &OutOfMemoryError{
		Requested: full.Requested, Free: full.Free, LargestFree: full.LargestFree,
		Capacity: full.Capacity, Device: device,
	}
}

// TimeoutError says which ranks did not come within the deadline, and what they were doing.
//
// Its fields, which "go doc symmem/driver.TimeoutError" explains:
//
//	Doing    string
//	Waited   time.Duration
//	Missing  []int
//	Activity map[int]string
//	Counts   string
//	Members  []int
type TimeoutError = driver.TimeoutError

// AbsentError says which ranks have not come to Open, Join or Split. errors.As finds it as a
// TimeoutError, too.
//
// Its fields, which "go doc symmem/driver.AbsentError" explains:
//
//	Doing    string
//	Waited   time.Duration
//	Ranks    []int
//	Activity map[int]string
//	Members  []int
//	Err      error
type AbsentError = driver.AbsentError

// absence makes an error of the rendezvous one of ours, where it is about ranks that did not come.
func absence(err error) error {
	var absent *rendezvous.AbsentError
	if !errors.As(err, &absent) {
		return err
	}
	return &arrival{AbsentError{Doing: "meeting all ranks", Ranks: absent.Ranks, Err: err}}
}

// arrival is an AbsentError that has the words of what it wraps: these name the ranks already, and
// the store at which they were to meet.
type arrival struct{ AbsentError }

func (e *arrival) Error() string { return e.Err.Error() }

func (e *arrival) As(target any) bool {
	if absent, ok := target.(**AbsentError); ok {
		*absent = &e.AbsentError
		return true
	}
	return e.AbsentError.As(target)
}

// MessageError says that the two ends of messages do not fit together: one is missing, or they
// differ in size, place among the collectives, or splits. All ranks of the group get the same one,
// except for what Group.Close finds, which that rank knows alone.
//
// Its fields, which "go doc symmem/driver.MessageError" explains:
//
//	Fault    MessageFault
//	Group    string
//	Number uint64
//	Ends     []MessageEnds
type MessageError = driver.MessageError

// MessageEnds are the two ends of a message, or of all messages of a pair with one tag.
//
// Its fields, which "go doc symmem/driver.MessageEnds" explains:
//
//	From     int
//	To       int
//	Tag      int
//	Number   uint64
//	Sent     uint64
//	Received uint64
type MessageEnds = driver.MessageEnds

// MessageFault says in what the two ends of messages do not fit together.
type MessageFault = driver.MessageFault

// The faults of messages.
const (
	MessagesUnmatched  = driver.MessagesUnmatched
	MessagesOutOfStep  = driver.MessagesOutOfStep
	MessagesDiffer     = driver.MessagesDiffer
	MessageTypesDiffer = driver.MessageTypesDiffer
	SplitsDiffer       = driver.SplitsDiffer
)

// RankLostError says which ranks' processes have ended, or which ranks have closed symmem.
//
// Its fields, which "go doc symmem/driver.RankLostError" explains:
//
//	Ranks   []int
//	Doing   string
//	Members []int
//	Left    bool
type RankLostError = driver.RankLostError

// PriorError reports that a collective or a message was not run on some rank, because earlier work
// on its stream had failed there. Its Cause is the error of that work.
//
// Its fields, which "go doc symmem/driver.PriorError" explains:
//
//	Doing string
//	Rank  int
//	Cause error
type PriorError = driver.PriorError

// DeadlockError says that ranks are in different places of their programs, or have left the group,
// so that a call can never complete.
//
// Its fields, which "go doc symmem/driver.DeadlockError" explains:
//
//	Doing     string
//	Elsewhere map[int]string
//	Members   []int
type DeadlockError = driver.DeadlockError

// MismatchError says that the two ends of a message, or the calls of a collective, differ, where no
// more than that could be found out; mostly a DivergenceError says it.
//
// Its fields, which "go doc symmem/driver.MismatchError" explains:
//
//	Number uint64
//	Launch   bool
//	Call     *Call
//	Others   []int
//	Group    string
//	Members  []int
type MismatchError = driver.MismatchError

// PeerError says that other ranks of a group failed first, where their reason could not be found
// out.
//
// Its fields, which "go doc symmem/driver.PeerError" explains:
//
//	Doing   string
//	Ranks   []int
//	Aborted bool
//	Members []int
type PeerError = driver.PeerError

// once joins errors, and says once what several of them say: what keeps one stream or segment from
// being given back often keeps others, too.
func once(errs ...error) error {
	var different []error
	said := map[string]bool{}
	for _, err := range parts(errors.Join(errs...)) {
		if text := err.Error(); !said[text] {
			said[text] = true
			different = append(different, err)
		}
	}
	return errors.Join(different...)
}

// parts takes errors that were joined apart again. An error that says more than its parts, as
// those of fmt do, is one.
func parts(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	if again := errors.Join(joined.Unwrap()...); again == nil || again.Error() != err.Error() {
		return []error{err}
	}
	var all []error
	for _, part := range joined.Unwrap() {
		all = append(all, parts(part)...)
	}
	return all
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), ErrInvalid)
}
