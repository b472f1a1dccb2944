package symmem

import (
	"errors"
	"fmt"

	"symmem/driver"
	"symmem/internal/agreement"
	"symmem/internal/alloc"
)

// Errors that can come from any call. They are wrapped; use errors.Is.
var (
	// ErrClosed is returned by everything that was closed.
	ErrClosed = driver.ErrClosed
	// ErrInvalid is returned for arguments that no state would make right.
	ErrInvalid = errors.New("invalid argument")
	// ErrUnsupported is returned for what the backend cannot do.
	ErrUnsupported = driver.ErrUnsupported
)

// Errors of memory.
var (
	// ErrOutOfMemory matches every OutOfMemoryError.
	ErrOutOfMemory = alloc.ErrOutOfMemory
	// ErrSize is returned for a size that is not positive, or absurd.
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
	// ErrOutOfRange is returned before launch when a buffer is too short for a collective, or runs
	// past its window.
	ErrOutOfRange = driver.ErrOutOfRange
	// ErrAborted is returned by a group after Abort on any of its ranks.
	ErrAborted = driver.ErrAborted
)

// OutOfMemoryError says that a request fits neither the free memory of its stream nor what may
// still be mapped. Its fields are in bytes.
type OutOfMemoryError = alloc.OutOfMemoryError

// TimeoutError says which ranks did not come within the deadline, and what they were doing.
type TimeoutError = driver.TimeoutError

// RankLostError says which ranks' processes have ended.
type RankLostError = driver.RankLostError

// PriorError says that a collective or a message was not run on some rank, because work before it on
// its stream had failed there. Its Cause is what a group or the stream reported there.
type PriorError = driver.PriorError

// DivergenceError says that ranks which should be alike are not, and where: the first event at
// which they differ, with what each rank has there. Every rank of the group gets the same one.
type DivergenceError = agreement.DivergenceError

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
