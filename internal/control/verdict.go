package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"symmem/driver"
)

// RankState is what is known of one rank of a group at one moment.
//
// Where it is read from shared memory the order matters: Lost of all ranks first, then Failed and
// Left, then what each rank is doing, and Missing last. So what a rank did before it failed, left
// or ended is seen.
type RankState struct {
	// Missing reports whether the rank has not come to what is waited for.
	Missing bool
	// Failed says how the rank has failed, if it has.
	Failed Reason
	// Completed reports whether the rank, before it failed, had seen complete what is waited for:
	// what is missing here is on its way.
	Completed bool
	// Left reports whether the rank has left the group, and Lost whether its process, or the
	// connection to it, has ended.
	Left, Lost bool
	// Submitted counts the collectives that the rank has launched.
	Submitted uint64
	// InCollective is the ticket that the rank waits for, or 0, and Operation what that one does.
	InCollective uint64
	Operation    driver.Operation
	// Exchanges counts the steps of the control lane to which the rank has come. InExchange is the
	// step in which it waits, or 0.
	Exchanges, InExchange uint64
	// Waited is how long it has been in that wait.
	Waited time.Duration
	// Message says for which message or value the rank waits, if it is in none of these waits, or
	// is empty.
	Message string
}

// dead reports whether the process of the rank has ended, and the rank had neither left nor
// aborted.
func (r *RankState) dead() bool { return r.Lost && !r.Left && r.Failed != Aborted }

// String says what the rank is doing.
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

// launched says how many collectives the rank has launched.
func (r *RankState) launched() string { return driver.Plural(r.Submitted, "collective") }

// WaitStatus describes a wait of this rank. Judge decides whether the wait can go on.
type WaitStatus struct {
	// Group is the group, with this rank in it.
	Group driver.GroupConfig
	// Doing says what this rank waits for, such as "AllReduce 12 of group world".
	Doing func() string
	// Collective is the ticket of the collective that waits, or 0. Exchange reports whether the
	// wait is a step of the control lane, or for values that are ordered with collectives. By these
	// two Judge finds ranks that wait for each other in different calls.
	Collective uint64
	Exchange   bool
	// Work reports whether all ranks may have come and what they have launched is waited for:
	// then every rank that is lost counts, since its part of the work may be lost with it. Work of
	// ticket 0 needs no other rank.
	Work bool
	// IgnoreFaults is set for waits that go on after faults, of this rank and of others.
	IgnoreFaults bool
	// Cause is why this rank has failed, or nil.
	Cause error
	// Closed reports whether this rank has left the group itself.
	Closed bool
	// Waited is how long the wait has lasted, and Timeout how long it may.
	Waited, Timeout time.Duration
	// DeadlinePassed reports whether a deadline other than Timeout has passed.
	DeadlinePassed bool
	// Stale reports whether messages of other ranks may have come that were not read yet. Then no
	// rank is taken to be late.
	Stale bool
	// FailedFor is how long a peer has been known to have failed while work went on, negative if it
	// has not: after Grace that is why the work ends.
	FailedFor time.Duration
	// Late says when to warn, and Warned is the time since the group's last warning, negative if
	// there was none.
	Late   driver.Late
	Warned time.Duration
}

// Verdict is what Judge decides.
type Verdict struct {
	// Err is why the wait ends without success, or nil: WaitStatus.Cause, a RankLostError,
	// PeerError, DeadlockError or TimeoutError of package driver.
	Err error
	// Left reports whether Err is a DeadlockError about ranks that have left. They may have left
	// because the process of another rank has ended, which this rank sees within Grace: a caller
	// that can call Judge again finds the better reason then.
	Left bool
	// Warning is what to warn of, or nil; the wait goes on.
	Warning *driver.LateWarning
}

// Judge decides whether a wait can go on, from what is known of the ranks of the group, in group
// order. The rules are the same for ranks of one machine and of several. It returns the first that
// holds, since each may be the cause of those below it:
//
//	this rank's own fault  q.Cause
//	a rank is lost         RankLostError: its process has ended, and it had not left the group
//	a peer has failed      PeerError: it does not come any more
//	a rank is elsewhere    DeadlockError: it has left the group, or waits for us in another call
//	a rank is late         TimeoutError: it lives and has not come in time
//
// A rank that left the group without coming is elsewhere and not lost, even if its process has
// ended since. A rank that aborted the group before its process ended is not lost either.
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

// ranksWhere lists the group ranks of the other ranks for which holds returns true.
func (q *WaitStatus) ranksWhere(states []RankState, holds func(*RankState) bool) []int {
	var ranks []int
	for r := range states {
		if r != q.Group.Rank && holds(&states[r]) {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// deadlock returns a DeadlockError that names the missing ranks that can never come, or nil.
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

// cannotCome reports whether a rank can never come to the wait. A rank that waits in an exchange
// launches nothing before this rank comes to it. So if it has launched fewer collectives than the
// one in which this rank waits, neither can go on; and the same the other way round.
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

// late decides about ranks that live and have not come.
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
	// Where faults are ignored ranks may stay away: only the caller knows whether they are late.
	if q.IgnoreFaults || q.Late.Next(q.Waited, q.Warned) != 0 {
		return Verdict{}
	}
	return Verdict{Warning: &driver.LateWarning{
		Group: q.Group.Name(), Doing: q.Doing(), Waited: waited, Ranks: q.Group.World(missing),
		Activity: q.activity(states, missing), Members: q.Group.Ranks,
	}}
}

// activity says what ranks are doing, by world rank.
func (q *WaitStatus) activity(states []RankState, ranks []int) map[int]string {
	all := map[int]string{}
	for _, r := range ranks {
		all[q.Group.Ranks[r]] = states[r].String()
	}
	return all
}

// PeerFailure says why a group cannot go on of which a peer is lost, has failed or has left: a
// RankLostError, PeerError or DeadlockError.
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

// SomePeerFault is PeerFault where a peer is known to have failed, although no state may say so
// yet.
func SomePeerFault(group driver.GroupConfig, states []RankState, doing func() string) error {
	if err := PeerFault(group, states, doing); err != nil {
		return err
	}
	return &driver.PeerError{Doing: doing(), Members: group.Ranks}
}

// PeerFault returns a PeerError that names the other ranks which have failed, without those that
// failed only because others had, or nil if none has.
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

// Interrupted is the error of a wait whose context has ended: it names the ranks that had not come
// by then. It wraps the context's cause.
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
