package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"symmem/event"
	"symmem/internal/ranklist"
)

// Errors of backends, possibly wrapped.
var (
	// ErrCapturing is returned by calls that are not allowed during a capture. The capture remains
	// valid.
	ErrCapturing = errors.New("a stream is being captured")
	// ErrNotCapturing is returned by EndCapture without BeginCapture.
	ErrNotCapturing = errors.New("the stream is not being captured")
	// ErrOutOfRange is returned if a count is too large, if a buffer is too short, or if a buffer is
	// not in a window (memory that the group has registered).
	ErrOutOfRange = errors.New("buffer runs past its window")
	ErrClosed     = errors.New("closed")
	// ErrFault matches every PeerError.
	ErrFault   = errors.New("a peer has failed")
	ErrAborted = errors.New("aborted")
	// ErrOutOfMemory matches every out-of-memory error of a pool, a device or CUDA.
	ErrOutOfMemory error = outOfMemory{}
	ErrInvalid           = errors.New("invalid argument")
	ErrUnsupported       = errors.New("not supported by this backend")
	// ErrBusy is returned if memory cannot be released, because running work may use it.
	ErrBusy = errors.New("work is in progress")
	// ErrSuspended is returned by calls that use memory of a suspended pool.
	ErrSuspended = errors.New("suspended")
	// ErrInterrupted is returned by waits that Config.Interrupted has ended.
	ErrInterrupted = errors.New("interrupted")
)

// TimeoutError reports which ranks did not arrive before the deadline.
//
// The errors have these fields in common. All ranks are world ranks: numbers among all processes.
//   - InCall names this rank's call, such as "AllReduce 12 of group world".
//   - Members lists the group's ranks in group order.
//   - Machines holds the known host names of ranks. It is nil if the group shares a machine.
//   - Activity describes what ranks are doing. Ranks whose activity is not known are missing.
type TimeoutError struct {
	InCall string
	Waited time.Duration
	// Missing lists the ranks that did not arrive. It is empty if this rank began to wait when its
	// deadline had passed or was near. The other ranks then had no time to arrive, and Activity
	// says so.
	Missing  []int
	Machines map[int]string `json:",omitempty"`
	Activity map[int]string
	// Counts describes how many collectives the library (NCCL) has launched on each rank. It is empty
	// if the numbers are the same or not known.
	Counts  string
	Members []int
}

func (e *TimeoutError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: waited %v", e.InCall, e.Waited)
	if len(e.Missing) > 0 {
		fmt.Fprintf(&b, " for %s", RanksOn(e.Missing, e.Members, e.Machines))
	}

	writeActivity(&b, e.Activity, e.Members)
	if e.Counts != "" {
		fmt.Fprintf(&b, "; the library counts %s", e.Counts)
	}

	return b.String()
}

// Timeout implements net.Error.
func (e *TimeoutError) Timeout() bool { return true }

// AbsentError reports the ranks that did not arrive at Open, Join or Split.
type AbsentError struct {
	InCall   string
	Waited   time.Duration  // 0 if unknown
	Ranks    []int          // the absent ranks
	Machines map[int]string `json:",omitempty"`
	Activity map[int]string
	Members  []int
	Err      error `json:"-"` // the error that ended the wait, if known
}

func (e *AbsentError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: ", e.InCall)
	if e.Waited > 0 {
		fmt.Fprintf(&b, "waited %v: ", e.Waited)
	}

	fmt.Fprintf(&b, "%s did not arrive", RanksOn(e.Ranks, e.Members, e.Machines))
	writeActivity(&b, e.Activity, e.Members)
	isDeadline := errors.Is(e.Err, context.DeadlineExceeded) // adds nothing to the text
	if e.Err != nil && !isDeadline {
		fmt.Fprintf(&b, ": %v", e.Err)
	}

	return b.String()
}

// Timeout implements net.Error.
func (e *AbsentError) Timeout() bool { return true }

// Unwrap returns the error that ended the wait.
func (e *AbsentError) Unwrap() error { return e.Err }

// As lets errors.As convert the error to a TimeoutError. It supports no other type.
func (e *AbsentError) As(target any) bool {
	timeout, ok := target.(**TimeoutError)
	if !ok {
		return false
	}

	*timeout = &TimeoutError{
		InCall: e.InCall, Waited: e.Waited, Missing: e.Ranks, Machines: e.Machines,
		Activity: e.Activity, Members: e.Members,
	}
	return true
}

// RankLostError reports ranks that have exited, are disconnected, or have closed symmem.
type RankLostError struct {
	Ranks    []int
	Machines map[int]string `json:",omitempty"`
	InCall   string
	Members  []int
	Left     bool // all of Ranks have closed symmem
}

func (e *RankLostError) Error() string {
	ranks := RanksOn(e.Ranks, e.Members, e.Machines)
	if e.Left {
		return fmt.Sprintf("%s: %s left: a rank that has closed symmem takes part in no further calls",
			e.InCall, ranks)
	}

	return fmt.Sprintf("%s: %s lost: the process, or the connection to it, has ended",
		e.InCall, ranks)
}

// PeerError reports that this rank's wait ended because other ranks of the group had failed. It
// matches ErrFault.
type PeerError struct {
	InCall string
	// Ranks lists the failed ranks. It is empty if they are not known.
	Ranks []int
	// Aborted is set if a failed rank has aborted the group. The error then also matches ErrAborted.
	Aborted bool
	Members []int
}

func (e *PeerError) Error() string {
	peers := "another rank of the group"
	if len(e.Ranks) > 0 {
		peers = RanksOf(e.Ranks, e.Members)
	}

	if e.Aborted {
		return fmt.Sprintf("%s: aborted by %s", e.InCall, peers)
	}

	return fmt.Sprintf("%s: %s failed first, for a reason not known to this rank", e.InCall, peers)
}

// Is reports whether target is ErrFault or, after an abort, ErrAborted.
func (e *PeerError) Is(target error) bool {
	if target == ErrFault {
		return true
	}

	return target == ErrAborted && e.Aborted
}

// Fault wraps the error that made a communicator fail, and identifies its group.
type Fault struct {
	Owner any // GroupConfig.Owner
	Err   error
}

func (e *Fault) Error() string { return e.Err.Error() }

// Unwrap returns the failure.
func (e *Fault) Unwrap() error { return e.Err }

// MismatchError reports that ranks launched different collectives, or that a Send and its Recv
// differ. All ranks involved return a MismatchError, and none of them has written to a buffer.
type MismatchError struct {
	// Number counts calls from 1: collectives of the group, or messages between two ranks. If Launch
	// is set, it counts launches of the group's kernels instead.
	Number  uint64
	Launch  bool
	Call    *Call // of this rank; nil if it made no call
	Others  []int // ranks with different calls
	Group   string
	Members []int
}

func (e *MismatchError) Error() string {
	kind := "collective"
	call := "no call"
	if e.Call != nil {
		described := e.Call.Describe()
		names := event.Names{Renumbered: !ranklist.NumberedAsWorld(e.Members)}
		call = string(described.AppendText(nil, names))
		if e.Call.Operation.PointToPoint() {
			kind = "message"
		}
	}

	if e.Launch {
		kind = "launch"
	}

	group := ""
	if e.Group != "" {
		group = " of group " + e.Group
	}

	return fmt.Sprintf("%s %d%s (%s) differs from that of %s", kind, e.Number, group, call,
		RanksOf(e.Others, e.Members))
}

// DeadlockError reports that this rank's call can never complete: ranks wait for each other in
// different calls, or have left the group.
type DeadlockError struct {
	InCall   string
	Activity map[int]string
	Members  []int
}

func (e *DeadlockError) Error() string {
	var b strings.Builder
	b.WriteString(e.InCall)
	b.WriteString(" can never complete (deadlock)")
	for _, rank := range sortedRanks(e.Activity) {
		fmt.Fprintf(&b, "; %s: %s", RanksOf([]int{rank}, e.Members), e.Activity[rank])
	}

	return b.String()
}

// PriorError reports that a collective or message was dropped because earlier work on its stream
// had failed.
type PriorError struct {
	InCall string
	Rank   int // world rank of the stream
	Cause  error
}

func (e *PriorError) Error() string {
	return fmt.Sprintf("%s was not run on rank %d of the world: work before it on its stream "+
		"failed: %v", e.InCall, e.Rank, e.Cause)
}

// Unwrap returns the failure of the earlier work.
func (e *PriorError) Unwrap() error { return e.Cause }

// OutOfMemoryError reports that the device has no memory for a segment.
type OutOfMemoryError struct {
	Requested int64 // size of the segment in bytes
	Cause     error // of the system or CUDA
}

func (e *OutOfMemoryError) Error() string {
	return fmt.Sprintf("no device memory for a segment of %d bytes: %v", e.Requested, e.Cause)
}

// Is reports whether target is ErrOutOfMemory.
func (e *OutOfMemoryError) Is(target error) bool { return target == ErrOutOfMemory }

// Unwrap returns the cause.
func (e *OutOfMemoryError) Unwrap() error { return e.Cause }

// outOfMemory is the type of ErrOutOfMemory.
type outOfMemory struct{}

func (outOfMemory) Error() string { return "out of memory" }

// OutOfMemory identifies the error in packages that cannot import driver.
func (outOfMemory) OutOfMemory() bool { return true }
