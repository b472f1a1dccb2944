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
	// ErrCapturing is returned by calls that are not allowed during a capture, which remains valid.
	ErrCapturing = errors.New("a stream is being captured")
	// ErrNotCapturing is returned by EndCapture without BeginCapture.
	ErrNotCapturing = errors.New("the stream is not being captured")
	// ErrOutOfRange is returned if a count is too large, or a buffer is too short or not in a
	// window.
	ErrOutOfRange = errors.New("buffer runs past its window")
	ErrClosed     = errors.New("closed")
	// ErrFault matches every PeerError.
	ErrFault   = errors.New("a peer has failed")
	ErrAborted = errors.New("aborted")
	// ErrOutOfMemory matches every out-of-memory error of a pool, a device or CUDA.
	ErrOutOfMemory error = outOfMemory{}
	ErrInvalid           = errors.New("invalid argument")
	ErrUnsupported       = errors.New("not supported by this backend")
	// ErrBusy is returned if running work may use the memory to be released.
	ErrBusy = errors.New("work is in progress")
	// ErrSuspended is returned by calls that use memory of a suspended pool.
	ErrSuspended = errors.New("suspended")
	// ErrInterrupted is returned by waits that Config.Interrupted has ended.
	ErrInterrupted = errors.New("interrupted")
)

// TimeoutError reports which ranks did not arrive before the deadline. Missing is empty if they had
// no time to arrive, because this rank began to wait when its own deadline had passed or was near.
// Activity then says so.
//
// In all errors, ranks are world ranks, and Members lists the group's ranks in group order.
// Machines holds the known host names of ranks, or nothing if the group shares a machine. Activity
// describes what ranks are doing, if known.
type TimeoutError struct {
	// InCall names this rank's call, such as "AllReduce 12 of group world".
	InCall   string
	Waited   time.Duration
	Missing  []int
	Machines map[int]string `json:",omitempty"`
	Activity map[int]string
	// Counts describes how many collectives the library has launched on each rank, if they differ.
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
	Waited   time.Duration // 0 if unknown
	Ranks    []int
	Machines map[int]string `json:",omitempty"`
	Activity map[int]string
	Members  []int
	Err      error `json:"-"`
}

func (e *AbsentError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: ", e.InCall)
	if e.Waited > 0 {
		fmt.Fprintf(&b, "waited %v: ", e.Waited)
	}
	fmt.Fprintf(&b, "%s did not arrive", RanksOn(e.Ranks, e.Members, e.Machines))
	writeActivity(&b, e.Activity, e.Members)
	if e.Err != nil && !errors.Is(e.Err, context.DeadlineExceeded) {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	return b.String()
}

// Timeout implements net.Error.
func (e *AbsentError) Timeout() bool { return true }

// Unwrap returns the error that ended the wait.
func (e *AbsentError) Unwrap() error { return e.Err }

// As converts the error to a TimeoutError.
func (e *AbsentError) As(target any) bool {
	timeout, ok := target.(**TimeoutError)
	if ok {
		*timeout = &TimeoutError{
			InCall: e.InCall, Waited: e.Waited, Missing: e.Ranks, Machines: e.Machines,
			Activity: e.Activity, Members: e.Members,
		}
	}
	return ok
}

// RankLostError reports ranks that have exited, are disconnected, or have closed symmem.
type RankLostError struct {
	Ranks    []int
	Machines map[int]string `json:",omitempty"`
	InCall   string
	Members  []int
	Left     bool // all of these ranks have closed symmem
}

func (e *RankLostError) Error() string {
	if e.Left {
		return fmt.Sprintf("%s: %s left: a rank that has closed symmem takes part in no further calls",
			e.InCall, RanksOn(e.Ranks, e.Members, e.Machines))
	}
	return fmt.Sprintf("%s: %s lost: the process, or the connection to it, has ended",
		e.InCall, RanksOn(e.Ranks, e.Members, e.Machines))
}

// PeerError reports that this rank's wait ended because other ranks of the group had failed. It
// matches ErrFault.
type PeerError struct {
	InCall string
	// Ranks lists the failed ranks, if known.
	Ranks []int
	// Aborted is set if one of these ranks has aborted the group. The error then matches
	// ErrAborted.
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
	return target == ErrFault || target == ErrAborted && e.Aborted
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
// differ. All ranks involved return one, and none has written to a buffer.
type MismatchError struct {
	// Number is the number, from 1, of the call in the group or of the message between two ranks.
	Number uint64
	// Launch is set if Number counts launches of the group's kernels instead.
	Launch  bool
	Call    *Call
	Others  []int // ranks with different calls
	Group   string
	Members []int
}

func (e *MismatchError) Error() string {
	kind, call := "collective", "no call"
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

// DeadlockError reports that this rank's call can never complete, because ranks wait for each other
// in different calls or have left the group.
type DeadlockError struct {
	InCall   string
	Activity map[int]string
	Members  []int
}

func (e *DeadlockError) Error() string {
	var b strings.Builder
	b.WriteString(e.InCall)
	b.WriteString(" can never complete (deadlock)")
	for _, r := range sortedRanks(e.Activity) {
		fmt.Fprintf(&b, "; %s: %s", RanksOf([]int{r}, e.Members), e.Activity[r])
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

// Unwrap returns the first failure.
func (e *PriorError) Unwrap() error { return e.Cause }

// OutOfMemoryError reports that the device has no memory for a segment.
type OutOfMemoryError struct {
	Requested int64 // of the segment, in bytes
	Cause     error
}

func (e *OutOfMemoryError) Error() string {
	return fmt.Sprintf("no device memory for a segment of %d bytes: %v", e.Requested, e.Cause)
}

// Is reports whether target is ErrOutOfMemory.
func (e *OutOfMemoryError) Is(target error) bool { return target == ErrOutOfMemory }

// Unwrap returns the system's error.
func (e *OutOfMemoryError) Unwrap() error { return e.Cause }

type outOfMemory struct{}

func (outOfMemory) Error() string { return "out of memory" }

// OutOfMemory identifies the error in packages that cannot import driver.
func (outOfMemory) OutOfMemory() bool { return true }
