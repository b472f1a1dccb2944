package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"symmem/driver"
)

// RankState is a snapshot of what is known about one rank of a group.
//
// When it is read from shared memory the order matters: first Lost of all ranks, then Failed and
// Left, then the activity of each rank, and Missing last. Then everything that a rank did before it
// failed, left or ended is included.
type RankState struct {
	// Missing reports whether the rank has not reached the awaited step.
	Missing bool
	// Failed classifies the failure of the rank, if it has failed.
	Failed Reason
	// Completed reports whether the rank had seen the awaited step complete before it failed. The
	// messages that this rank still misses are then in transit.
	Completed bool
	// Left reports whether the rank has left the group, and Lost whether its process, or the
	// connection to it, has ended.
	Left, Lost bool
	// Submitted counts the collectives that the rank has launched.
	Submitted uint64
	// InCollective is the ticket that the rank waits for, or 0; Operation is its operation.
	InCollective uint64
	Operation    driver.Operation
	// Exchanges counts the steps of the control lane that the rank has reached. InExchange is the
	// step in which it waits, or 0.
	Exchanges, InExchange uint64
	// Waited is the time that the rank has spent in that wait.
	Waited time.Duration
	// Message describes the message or value that the rank waits for if it is in no other wait. It
	// is empty otherwise.
	Message string
}

// dead reports whether the process of the rank has ended although the rank had neither left nor
// aborted.
func (r *RankState) dead() bool { return r.Lost && !r.Left && r.Failed != Aborted }

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

// launched describes the number of collectives that the rank has launched.
func (r *RankState) launched() string { return driver.Plural(r.Submitted, "collective") }

// WaitStatus describes a wait of this rank. Judge decides from it whether the wait continues.
type WaitStatus struct {
	// Group is the group of the wait, with this rank as Group.Rank.
	Group driver.GroupConfig
	// Doing describes what this rank waits for, such as "AllReduce 12 of group world".
	Doing func() string
	// Collective is the ticket of the collective that waits, or 0. Exchange is set for a step of
	// the control lane and for values that are ordered with collectives. Judge uses both to detect
	// ranks that wait for each other in different calls.
	Collective uint64
	Exchange   bool
	// Work is set for waits that do not end when all ranks have arrived, but when the work that
	// they launched has ended. Any lost rank then ends the wait, since its part of the work may be
	// lost, too. Work with ticket 0 needs no other rank.
	Work bool
	// IgnoreFaults is set for waits that continue after faults of this rank and of others.
	IgnoreFaults bool
	// Cause is the fault of this rank, or nil.
	Cause error
	// Closed reports whether this rank has left the group itself.
	Closed bool
	// Waited is the time waited so far, and Timeout its limit.
	Waited, Timeout time.Duration
	// DeadlinePassed reports whether a deadline other than Timeout has passed.
	DeadlinePassed bool
	// Stale is set while messages of other ranks may have arrived without being read. No rank is
	// considered late then.
	Stale bool
	// FailedFor is the time for which a peer has been known to have failed while work continued,
	// negative if none has. After Grace, that ends the wait.
	FailedFor time.Duration
	// Late configures warnings, and Warned is the time since the group's last warning, negative if
	// there was none.
	Late   driver.Late
	Warned time.Duration
}

// Verdict is the decision of Judge.
type Verdict struct {
	// Err is the error that ends the wait, or nil: WaitStatus.Cause, or a RankLostError, PeerError,
	// DeadlockError or TimeoutError of package driver.
	Err error
	// Left is set if Err is a DeadlockError about ranks that have left. They may have left because
	// the process of another rank has ended, which this rank detects within Grace. A caller that
	// can call Judge again gets the root cause then.
	Left bool
	// Warning is the warning to issue, or nil. The wait continues after it.
	Warning *driver.LateWarning
}

// Judge decides whether a wait continues, from the states of the group's ranks in group order. The
// rules are the same for ranks of one machine and of several. They are tried in this order, since
// each condition may be the cause of those below it:
//
//	this rank's own fault  q.Cause
//	a rank is lost         RankLostError: its process has ended and it had not left the group
//	a peer has failed      PeerError: it will not arrive
//	a rank is elsewhere    DeadlockError: it has left the group, or waits for us in another call
//	a rank is late         TimeoutError: it is alive and has not arrived in time
//
// A rank that left the group without arriving is elsewhere and not lost, even if its process has
// ended since. Neither is a rank lost that aborted the group before its process ended.
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
	missing := q.ranksWhere(states, func(r *RankState) bool { return r.Missing })
	if len(missing) == 0 && !q.Work {
		return Verdict{}
	}
	lost := q.ranksWhere(states, func(r *RankState) bool { return r.dead() && (q.Work || r.Missing) })
	if len(lost) > 0 {
		return Verdict{Err: &driver.RankLostError{
			Ranks: q.Group.World(lost), Doing: q.Doing(), Members: q.Group.Ranks,
		}}
	}
	if faults && (len(missing) > 0 || q.FailedFor >= Grace) {
		if err := PeerFault(q.Group, states, q.Doing); err != nil {
			return Verdict{Err: err}
		}
	}
	if err := q.deadlock(states); err != nil {
		left := q.ranksWhere(states, func(r *RankState) bool { return r.Missing && r.Left })
		return Verdict{Err: err, Left: len(left) > 0}
	}
	return q.late(states, missing)
}

// ranksWhere lists the other group ranks for which holds returns true.
func (q *WaitStatus) ranksWhere(states []RankState, holds func(*RankState) bool) []int {
	var ranks []int
	for r := range states {
		if r != q.Group.Rank && holds(&states[r]) {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// deadlock returns a DeadlockError that names the missing ranks that can never arrive, or nil.
func (q *WaitStatus) deadlock(states []RankState) error {
	elsewhere := q.ranksWhere(states, func(r *RankState) bool {
		return r.Missing && q.cannotCome(&states[q.Group.Rank], r)
	})
	if len(elsewhere) == 0 {
		return nil
	}
	return &driver.DeadlockError{
		Doing: q.Doing(), Elsewhere: q.activity(states, elsewhere), Members: q.Group.Ranks,
	}
}

// cannotCome reports whether a rank can never reach this wait. A rank that waits in an exchange
// launches nothing before this rank joins it. So if it has launched fewer collectives than the one
// in which this rank waits, neither can proceed; the same holds with the roles swapped.
func (q *WaitStatus) cannotCome(me, r *RankState) bool {
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

// late decides about ranks that are alive and have not arrived.
func (q *WaitStatus) late(states []RankState, missing []int) Verdict {
	if len(missing) == 0 || q.Stale {
		return Verdict{}
	}
	waited := q.Waited.Round(time.Millisecond)
	if q.DeadlinePassed || q.Waited >= q.Timeout {
		return Verdict{Err: &driver.TimeoutError{
			Doing: q.Doing(), Waited: waited, Missing: q.Group.World(missing),
			Activity: q.activity(states, missing), Members: q.Group.Ranks,
		}}
	}
	// Where faults are ignored, ranks may be absent: only the caller knows whether they are late.
	if q.IgnoreFaults || q.Late.Next(q.Waited, q.Warned) != 0 {
		return Verdict{}
	}
	return Verdict{Warning: &driver.LateWarning{
		Group: q.Group.Name(), Doing: q.Doing(), Waited: waited, Ranks: q.Group.World(missing),
		Activity: q.activity(states, missing), Members: q.Group.Ranks,
	}}
}

// activity describes what the given ranks are doing, by world rank.
func (q *WaitStatus) activity(states []RankState, ranks []int) map[int]string {
	all := map[int]string{}
	for _, r := range ranks {
		all[q.Group.Ranks[r]] = states[r].String()
	}
	return all
}

// PeerFailure returns the reason why a group cannot continue after a peer was lost, failed or left:
// a RankLostError, PeerError or DeadlockError.
func PeerFailure(group driver.GroupConfig, states []RankState, doing string) error {
	q := WaitStatus{Group: group}
	if lost := q.ranksWhere(states, (*RankState).dead); len(lost) > 0 {
		return &driver.RankLostError{
			Ranks: group.World(lost), Doing: doing, Members: group.Ranks,
		}
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

// SomePeerFault returns the result of PeerFault for a caller that knows of a failed peer, even if
// no state shows the failure yet.
func SomePeerFault(group driver.GroupConfig, states []RankState, doing func() string) error {
	if err := PeerFault(group, states, doing); err != nil {
		return err
	}
	return &driver.PeerError{Doing: doing(), Members: group.Ranks}
}

// PeerFault returns a PeerError that names the other ranks that have failed, except those that
// failed only because others had. It returns nil if no rank has failed.
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
	missing := q.ranksWhere(states, func(r *RankState) bool { return r.Missing })
	if len(missing) == 0 {
		return fmt.Errorf("%s: %w", q.Doing(), cause)
	}
	late := driver.TimeoutError{
		Doing: q.Doing(), Waited: q.Waited.Round(time.Millisecond),
		Missing: q.Group.World(missing), Activity: q.activity(states, missing),
		Members: q.Group.Ranks,
	}
	if errors.Is(cause, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", &late, cause)
	}
	return fmt.Errorf("%s: %w", late.Error(), cause)
}
