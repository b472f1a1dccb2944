package driver

import (
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"
)

// Errors that a backend returns. They are wrapped; use errors.Is.
var (
	// ErrCapturing is returned by what may not happen while a stream records. The capture is
	// still good.
	ErrCapturing = errors.New("a stream is being captured")
	// ErrNotCapturing is returned by EndCapture without BeginCapture.
	ErrNotCapturing = errors.New("the stream is not being captured")
	// ErrOutOfRange is returned before launch when a buffer runs past its window.
	ErrOutOfRange = errors.New("buffer runs past its window")
	// ErrClosed is returned by everything that was closed.
	ErrClosed = errors.New("closed")
	// ErrFault is returned when a peer has failed; LaneFault tells why.
	ErrFault = errors.New("a peer has failed")
	// ErrAborted is returned after Abort.
	ErrAborted = errors.New("aborted")
	// ErrOutOfMemory matches every OutOfMemoryError.
	ErrOutOfMemory = errors.New("out of memory")
	// ErrUnsupported is returned for what a backend cannot do.
	ErrUnsupported = errors.New("not supported by this backend")
)

// TimeoutError says that ranks did not come within the deadline.
type TimeoutError struct {
	// Doing says what this rank waited for, such as "AllReduce 12 of group 0".
	Doing string
	// Waited is how long.
	Waited time.Duration
	// Missing lists the world ranks that did not come.
	Missing []int
	// Activity says what ranks were doing, by world rank, as far as it is known.
	Activity map[int]string
}

func (e *TimeoutError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: waited %v", e.Doing, e.Waited)
	if len(e.Missing) > 0 {
		fmt.Fprintf(&b, " for %s", Ranks(e.Missing))
	}
	for _, r := range sortedRanks(e.Activity) {
		fmt.Fprintf(&b, "; rank %d: %s", r, e.Activity[r])
	}
	return b.String()
}

// Timeout reports true, as net.Error has it.
func (e *TimeoutError) Timeout() bool { return true }

// RankLostError says that the processes of ranks have ended, or, between machines, the connections
// to them, by which this rank knows.
type RankLostError struct {
	// Ranks lists the world ranks that are lost.
	Ranks []int
	// Doing says what this rank was doing when it noticed.
	Doing string
}

func (e *RankLostError) Error() string {
	return fmt.Sprintf("%s: %s lost: the process, or the connection to it, has ended",
		e.Doing, Ranks(e.Ranks))
}

// MismatchError says that ranks launched different collectives. Every rank gets one for the same
// sequence number, and no buffer of any rank has been written.
type MismatchError struct {
	// Sequence is the number of the call in its communicator, from 1.
	Sequence uint64
	// Call is this rank's call.
	Call *Call
	// Others lists the world ranks whose calls differ from this rank's.
	Others []int
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("collective %d (%v of %d %v) differs from that of %s",
		e.Sequence, e.Call.Operation, e.Call.Count, e.Call.DataType, Ranks(e.Others))
}

// StrayError says that ranks are in different places of their programs: while this rank was in a
// collective, others wait elsewhere for it, so that neither can go on.
type StrayError struct {
	// Doing is where this rank is.
	Doing string
	// Elsewhere says where the others are, by world rank.
	Elsewhere map[int]string
}

func (e *StrayError) Error() string {
	var b strings.Builder
	b.WriteString(e.Doing)
	b.WriteString(" can never complete")
	for _, r := range sortedRanks(e.Elsewhere) {
		fmt.Fprintf(&b, "; rank %d: %s", r, e.Elsewhere[r])
	}
	return b.String()
}

// OutOfMemoryError says that the device has no memory for a segment.
type OutOfMemoryError struct {
	// Requested is in bytes.
	Requested int64
	// Cause is the system's error.
	Cause error
}

func (e *OutOfMemoryError) Error() string {
	return fmt.Sprintf("no device memory for a segment of %d bytes: %v", e.Requested, e.Cause)
}

// Is makes errors.Is(err, ErrOutOfMemory) true.
func (e *OutOfMemoryError) Is(target error) bool { return target == ErrOutOfMemory }

// Unwrap returns the system's error.
func (e *OutOfMemoryError) Unwrap() error { return e.Cause }

// Ranks writes a list of ranks for people: "rank 3", "ranks 1, 2".
func Ranks(ranks []int) string {
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d", ranks[0])
	}
	return "ranks " + strings.Trim(strings.ReplaceAll(fmt.Sprint(ranks), " ", ", "), "[]")
}

func sortedRanks(m map[int]string) []int {
	ranks := make([]int, 0, len(m))
	for r := range m {
		ranks = append(ranks, r)
	}
	sort.Ints(ranks)
	return ranks
}
