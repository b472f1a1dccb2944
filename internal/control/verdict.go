package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"symmem/driver"
)

// RankState is a snapshot of what this rank knows about the state of a group's rank.
//
// Judge relies on the order in which states are read from shared memory: first Lost of all ranks,
// then Failed and Left, then the activity of each rank, and Missing last. A snapshot then includes
// everything that a rank did before it failed, left or ended.
type RankState struct {
	// Missing reports whether the rank has not reached the awaited step.
	Missing bool
	// Failed classifies the failure of the rank, if it has failed.
	Failed Reason
	// Completed reports whether the awaited step completed on the rank before the rank failed. If
	// so, the messages that this rank still awaits are in transit.
	Completed bool
	// Left reports whether the rank has left the group. Lost reports whether its process, or the
	// connection to it, has ended.
	Left, Lost bool
	// Submitted counts the collectives that the rank has launched.
	Submitted uint64
	// InCollective holds the ticket of the collective in which the rank waits, or 0.
	InCollective uint64
	// Operation holds the operation of that collective.
	Operation driver.Operation
	// Exchanges counts the steps of the control lane that the rank has reached. InExchange holds
	// the number of the step in which the rank waits, or 0.
	Exchanges, InExchange uint64
	// Waited is the time that the rank has been in its collective or exchange.
	Waited time.Duration
	// Message describes the message or value that the rank waits for, if any.
	Message string
}

// dead reports whether the rank's process ended before the rank left or aborted the group.
func (r *RankState) dead() bool { return r.Lost && !r.Left && r.Failed != Aborted }

// late reports whether the wait still waits for the rank.
func (r *RankState) late() bool { return r.Missing }

// String describes the activity of the rank.
func (r *RankState) String() string {
	waited := r.Waited.Round(time.Millisecond)
	switch {
	case r.Left:
		return "has left the group"
	case r.InCollective != 0:
		return fmt.Sprintf("in %v %d for %v", r.Operation, r.InCollective, waited)
	case r.InExchange != 0:
		return fmt.Sprintf("in an agreement for %v, after %s", waited, r.launched())
	case r.Message != "":
		return fmt.Sprintf("%s, after %s", r.Message, r.launched())
	default:
		return "in no call of this group, after " + r.launched()
	}
}

func (r *RankState) launched() string { return driver.Plural(r.Submitted, "collective") }

// WaitStatus describes a wait of this rank. Judge decides whether the wait continues.
type WaitStatus struct {
	// Group describes the waiting group. Group.Rank is this rank.
	Group driver.GroupConfig
	// Doing describes the wait, for example "AllReduce 12 of group world".
	Doing func() string
	// Collective holds the ticket of the waiting collective, or 0. From Collective and Exchange,
	// Judge detects ranks that wait for each other in different calls.
	Collective uint64
	// Exchange is set for a step of the control lane, and for values that are ordered with
	// collectives.
	Exchange bool
	// Work is set if the wait ends when launched work ends. Otherwise it ends when all ranks have
	// arrived. A lost rank may leave its part of the work incomplete, so any lost rank ends a wait
	// for work. Work with Collective 0 needs no other rank.
	Work bool
	// IgnoreFaults is set if the wait continues after a fault of any rank.
	IgnoreFaults bool
	// Cause holds the fault of this rank, or nil.
	Cause error
	// Closed reports whether this rank has left the group.
	Closed bool
	// Waited is the duration of the wait so far. Timeout limits it.
	Waited, Timeout time.Duration
	// DeadlinePassed reports whether a deadline other than Timeout has passed.
	DeadlinePassed bool
	// Stale is set while unread messages of other ranks may have arrived. Judge then considers no
	// rank late.
	Stale bool
	// FailedFor is the time for which work has continued after a peer's failure was detected. It is
	// negative if no peer has failed. The wait ends when FailedFor reaches Grace.
	FailedFor time.Duration
	// Late configures warnings.
	Late driver.Late
	// Warned is the time since the group's last warning, or negative if there was none.
	Warned time.Duration
}

// Verdict holds the decision of Judge. A wait whose verdict has no error continues.
type Verdict struct {
	// Err ends the wait if it is not nil. It is WaitStatus.Cause, or a RankLostError, PeerError,
	// DeadlockError or TimeoutError of package driver.
	Err error
	// Left is set if Err is a DeadlockError about ranks that have left the group. The root cause
	// may be the end of another rank's process, which this rank detects within Grace. A caller that
	// can wait for Grace should then call Judge again.
	Left bool
	// Warning holds the warning to issue, or nil.
	Warning *driver.LateWarning
}

// Judge decides whether a wait continues. states holds the states of the group's ranks in group
// order. The rules do not depend on the number of machines. Judge checks these conditions in order,
// because an earlier condition may cause a later one:
//
//	this rank has failed   q.Cause
//	a rank is lost         RankLostError: its process has ended before it left the group. The error
//	                       names all lost ranks, also those that have reached the awaited step
//	a peer has failed      PeerError: the peer will not arrive
//	a rank is elsewhere    DeadlockError: it has left the group, or waits for us in another call
//	a rank is late         TimeoutError: it is alive and has not arrived in time
//
// A rank that left the group without arriving is elsewhere, not lost, even if its process has ended
// since. A rank that aborted the group before its process ended is not lost either.
func Judge(q *WaitStatus, states []RankState) Verdict {
	completed := false
	for i := range states {
		completed = completed || states[i].Failed != NotFailed && states[i].Completed
	}
	faults := !q.IgnoreFaults && (q.Closed || !completed)
	if q.Cause != nil && faults {
		return Verdict{Err: q.Cause}
	}
	if q.Work && q.Collective == 0 {
		return Verdict{}
	}
	missing := q.anyWhere(states, (*RankState).late)
	if !missing && !q.Work {
		return Verdict{}
	}
	lost := q.ranksWhere(states, (*RankState).dead)
	if slices.ContainsFunc(lost, func(r int) bool { return q.Work || states[r].Missing }) {
		return Verdict{Err: lostError(q.Group, lost, q.Doing())}
	}
	if faults && (missing || q.FailedFor >= Grace) {
		if err := PeerFault(q.Group, states, q.Doing); err != nil {
			return Verdict{Err: err}
		}
	}
	if err := q.deadlock(states); err != nil {
		left := q.ranksWhere(states, func(r *RankState) bool { return r.Missing && r.Left })
		return Verdict{Err: err, Left: len(left) > 0}
	}
	if !missing || q.Stale {
		return Verdict{}
	}
	return q.late(states)
}

func (q *WaitStatus) ranksWhere(states []RankState, match func(*RankState) bool) []int {
	var ranks []int
	for r := range states {
		if r != q.Group.Rank && match(&states[r]) {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// anyWhere reports whether the state of another group rank matches. Unlike ranksWhere, it does not
// allocate.
func (q *WaitStatus) anyWhere(states []RankState, match func(*RankState) bool) bool {
	for r := range states {
		if r != q.Group.Rank && match(&states[r]) {
			return true
		}
	}
	return false
}

// deadlock returns a DeadlockError that names the missing ranks that cannot arrive, or nil.
func (q *WaitStatus) deadlock(states []RankState) error {
	elsewhere := q.ranksWhere(states, func(r *RankState) bool {
		return r.Missing && q.cannotArrive(&states[q.Group.Rank], r)
	})
	if len(elsewhere) == 0 {
		return nil
	}
	return &driver.DeadlockError{
		Doing: q.Doing(), Elsewhere: q.activity(states, elsewhere), Members: q.Group.Ranks,
	}
}

// cannotArrive reports whether a rank can never reach this wait. A rank that waits in an exchange
// launches nothing before this rank joins the exchange. If that rank has not launched the
// collective in which this rank waits, neither rank can proceed. The same holds if this rank waits
// in an exchange and the other rank in a collective.
func (q *WaitStatus) cannotArrive(me, r *RankState) bool {
	switch {
	case r.Left:
		return true
	case q.Collective != 0:
		return r.InExchange > me.Exchanges && r.Submitted < q.Collective
	case q.Exchange:
		return r.InCollective > me.Submitted
	}
	return false
}

// late returns the verdict for missing ranks that are alive. It contains a timeout, a warning or
// neither.
func (q *WaitStatus) late(states []RankState) Verdict {
	waited := q.Waited.Round(time.Millisecond)
	if q.DeadlinePassed || q.Waited >= q.Timeout {
		missing := q.ranksWhere(states, (*RankState).late)
		return Verdict{Err: &driver.TimeoutError{
			Doing: q.Doing(), Waited: waited, Missing: q.Group.World(missing),
			Machines: q.Group.MachinesOf(q.Group.World(missing)),
			Activity: q.activity(states, missing), Members: q.Group.Ranks,
		}}
	}
	// If faults are ignored, missing ranks may never arrive, and only the caller knows which are
	// late.
	if q.IgnoreFaults || q.Late.Next(q.Waited, q.Warned) != 0 {
		return Verdict{}
	}
	warning := q.Describe(states)
	warning.Waited = waited
	return Verdict{Warning: warning}
}

func (q *WaitStatus) activity(states []RankState, ranks []int) map[int]string {
	all := map[int]string{}
	for _, r := range ranks {
		all[q.Group.Ranks[r]] = states[r].String()
	}
	return all
}

// Describe returns the wait as a LateWarning, or nil if no rank is missing.
func (q *WaitStatus) Describe(states []RankState) *driver.LateWarning {
	missing := q.ranksWhere(states, (*RankState).late)
	if len(missing) == 0 {
		return nil
	}
	return &driver.LateWarning{
		Group: q.Group.Name(), Doing: q.Doing(), Waited: q.Waited, Ranks: q.Group.World(missing),
		Machines: q.Group.MachinesOf(q.Group.World(missing)),
		Activity: q.activity(states, missing), Members: q.Group.Ranks,
	}
}

// Activity describes the activities of the other ranks of a group, by world rank.
func Activity(group driver.GroupConfig, states []RankState) map[int]string {
	q := WaitStatus{Group: group}
	return q.activity(states, q.ranksWhere(states, func(*RankState) bool { return true }))
}

// PeerFailure returns the reason why a group cannot continue after a peer was lost, failed or left,
// as a RankLostError, PeerError or DeadlockError.
func PeerFailure(group driver.GroupConfig, states []RankState, doing string) error {
	q := WaitStatus{Group: group}
	if lost := q.ranksWhere(states, (*RankState).dead); len(lost) > 0 {
		return lostError(group, lost, doing)
	}
	if err := PeerFault(group, states, func() string { return doing }); err != nil {
		return err
	}
	if left := q.ranksWhere(states, func(r *RankState) bool { return r.Left }); len(left) > 0 {
		return &driver.DeadlockError{
			Doing: doing, Elsewhere: q.activity(states, left), Members: group.Ranks,
		}
	}
	return &driver.PeerError{Doing: doing, Members: group.Ranks}
}

func lostError(group driver.GroupConfig, lost []int, doing string) *driver.RankLostError {
	ranks := group.World(lost)
	return &driver.RankLostError{
		Ranks: ranks, Machines: group.MachinesOf(ranks), Doing: doing, Members: group.Ranks,
	}
}

// Departed returns the world ranks that are lost, and those that have left the group or have ended
// after an abort.
func Departed(group driver.GroupConfig, states []RankState) (lost, left []int) {
	q := WaitStatus{Group: group}
	lost = q.ranksWhere(states, (*RankState).dead)
	left = q.ranksWhere(states, func(r *RankState) bool { return (r.Left || r.Lost) && !r.dead() })
	return group.World(lost), group.World(left)
}

// SomePeerFault returns the result of PeerFault or, if no state shows a failure yet, a PeerError
// without ranks. The caller knows that a peer has failed.
func SomePeerFault(group driver.GroupConfig, states []RankState, doing func() string) error {
	if err := PeerFault(group, states, doing); err != nil {
		return err
	}
	return &driver.PeerError{Doing: doing(), Members: group.Ranks}
}

// PeerFault returns a PeerError that names the other ranks that have failed, without those that
// failed only because of another failure. It returns nil if no rank has failed.
func PeerFault(group driver.GroupConfig, states []RankState, doing func() string) error {
	var first, followed []int
	aborted := false
	for r := range states {
		switch reason := states[r].Failed; {
		case r == group.Rank || reason == NotFailed:
		case reason == FailedAfterPeer:
			followed = append(followed, group.Ranks[r])
		default:
			first = append(first, group.Ranks[r])
			aborted = aborted || reason == Aborted
		}
	}
	if len(first) == 0 {
		first = followed
	}
	if len(first) == 0 {
		return nil
	}
	return &driver.PeerError{Doing: doing(), Ranks: first, Aborted: aborted, Members: group.Ranks}
}

// Interrupted returns the error of a wait whose context has ended. It names the ranks that had not
// arrived and wraps the context's cause.
func Interrupted(q *WaitStatus, states []RankState, cause error) error {
	missing := q.ranksWhere(states, (*RankState).late)
	if len(missing) == 0 {
		return fmt.Errorf("%s: %w", q.Doing(), cause)
	}
	late := driver.TimeoutError{
		Doing: q.Doing(), Waited: q.Waited.Round(time.Millisecond),
		Missing: q.Group.World(missing), Machines: q.Group.MachinesOf(q.Group.World(missing)),
		Activity: q.activity(states, missing), Members: q.Group.Ranks,
	}
	if errors.Is(cause, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", &late, cause)
	}
	return fmt.Errorf("%s: %w", late.Error(), cause)
}
