package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"symmem/driver"
)

// Row is what is known of one rank of a group at one moment. Whoever makes rows of memory that
// ranks share reads of all ranks Lost first, then Failed and Left, then what each is doing, and
// Missing last: so what a rank had done before it failed, left or ended is seen.
type Row struct {
	// Missing reports whether the rank has not come to what is waited for.
	Missing bool
	// Failed says how the rank has failed, if it has.
	Failed Reason
	// Completed reports whether the rank, before it failed, had seen complete what is waited for: what
	// is missing here is on its way.
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
	// Message says what message or value it waits for, if it is in none of these waits, or
	// nothing.
	Message string
}

// dead reports whether the rank has ended without a word: it has neither left nor aborted.
func (r *Row) dead() bool { return r.Lost && !r.Left && r.Failed != Aborted }

// String says what the rank is doing.
func (r *Row) String() string {
	waited := r.Waited.Round(time.Millisecond)
	switch {
	case r.Left:
		return "has left the group"
	case r.InCollective != 0:
		return fmt.Sprintf("in %v %d for %v", r.Operation, r.InCollective, waited)
	case r.InExchange != 0:
		return fmt.Sprintf("in an agreement for %v, after %d collectives", waited, r.Submitted)
	case r.Message != "":
		return fmt.Sprintf("%s, after %d collectives", r.Message, r.Submitted)
	default:
		return fmt.Sprintf("in no call of this group, after %d collectives", r.Submitted)
	}
}

// Question is a wait of this rank, about which Judge decides whether it can go on.
type Question struct {
	// Group is the group, with this rank in it.
	Group driver.GroupConfig
	// Doing says what this rank waits for, such as "AllReduce 12 of group 0".
	Doing func() string
	// Collective is the ticket of the collective that waits, or 0; Exchange reports whether it is a
	// step of the control lane, or under an ordered name. They prove that two ranks wait for each
	// other in different places.
	Collective uint64
	Exchange   bool
	// Work reports whether all ranks may have come and what they have launched is waited for:
	// then every rank that is lost counts, since its part of the work may be lost with it. Work of
	// ticket 0 needs no other rank.
	Work bool
	// Tolerant waits go on after faults, of this rank and of others.
	Tolerant bool
	// Cause is why this rank has failed, or nil.
	Cause error
	// Closed reports whether this rank has left the group itself.
	Closed bool
	// Waited is how long the wait has lasted, and Timeout how long it may.
	Waited, Timeout time.Duration
	// Due reports whether a deadline other than Timeout has passed.
	Due bool
	// Unread reports whether what others have said may lie unread, so that nobody is late yet.
	Unread bool
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
	// Err is why the wait ends without success, or nil: Question.Cause, a RankLostError, PeerError,
	// StrayError or TimeoutError of package driver.
	Err error
	// Left reports whether Err is a StrayError about ranks that have left. They may have left because
	// the process of another rank has ended, of which this rank hears within Grace: who can look
	// again finds a better reason then.
	Left bool
	// Warning is what to warn of, or nil; the wait goes on.
	Warning *driver.LateWarning
}

// Judge decides whether a wait can go on, by what is known of the ranks of the group, in group
// order. It is the same for ranks of one machine and of several. What comes first explains what
// comes later:
//
//	this rank's own fault
//	a rank is lost        its process has ended and it had not left the group
//	a peer has failed     it does not come any more, whoever else is late
//	a rank is astray      it has left, or waits for this rank in another place of the program
//	a rank is late        it lives and has not come in time
//
// A rank that has left without coming can never come, whether or not its process has ended since:
// it is astray and not lost. One that has aborted the group is not lost either: it said so first.
func Judge(q *Question, rows []Row) Verdict {
	completed := false
	for i := range rows {
		completed = completed || rows[i].Failed != NotFailed && rows[i].Completed
	}
	faults := !q.Tolerant && (q.Closed || !completed)
	if q.Cause != nil && faults {
		return Verdict{Err: q.Cause}
	}
	if q.Work && q.Collective == 0 {
		return Verdict{}
	}
	missing := q.those(rows, func(r *Row) bool { return r.Missing })
	if len(missing) == 0 && !q.Work {
		return Verdict{}
	}
	lost := q.those(rows, func(r *Row) bool { return r.dead() && (q.Work || r.Missing) })
	if len(lost) > 0 {
		return Verdict{Err: &driver.RankLostError{
			Ranks: q.Group.World(lost), Doing: q.Doing(), Members: q.Group.Ranks,
		}}
	}
	if faults && (len(missing) > 0 || q.FailedFor >= Grace) {
		if err := PeerFault(q.Group, rows, q.Doing); err != nil {
			return Verdict{Err: err}
		}
	}
	if err := q.stray(rows); err != nil {
		left := q.those(rows, func(r *Row) bool { return r.Missing && r.Left })
		return Verdict{Err: err, Left: len(left) > 0}
	}
	return q.late(rows, missing)
}

// those lists the group ranks of other rows of which something holds.
func (q *Question) those(rows []Row, holds func(*Row) bool) []int {
	var ranks []int
	for r := range rows {
		if r != q.Group.Rank && holds(&rows[r]) {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// stray reports the proof that missing ranks will never come, or nil.
func (q *Question) stray(rows []Row) error {
	astray := q.those(rows, func(r *Row) bool {
		return r.Missing && q.never(&rows[q.Group.Rank], r)
	})
	if len(astray) == 0 {
		return nil
	}
	return &driver.StrayError{
		Doing: q.Doing(), Elsewhere: q.activity(rows, astray), Members: q.Group.Ranks,
	}
}

// never reports whether a rank can never come to the wait. One that waits for us in an exchange
// launches nothing before we come, so if it has launched fewer collectives than the one we are in,
// neither of us can go on; and the same the other way round.
func (q *Question) never(me, r *Row) bool {
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
func (q *Question) late(rows []Row, missing []int) Verdict {
	if len(missing) == 0 || q.Unread {
		return Verdict{}
	}
	waited := q.Waited.Round(time.Millisecond)
	if q.Due || q.Waited >= q.Timeout {
		return Verdict{Err: &driver.TimeoutError{
			Doing: q.Doing(), Waited: waited, Missing: q.Group.World(missing),
			Activity: q.activity(rows, missing), Members: q.Group.Ranks,
		}}
	}
	// Ranks may stay away from tolerant waits: only who makes one knows whether they are late.
	if q.Tolerant || q.Late.Next(q.Waited, q.Warned) != 0 {
		return Verdict{}
	}
	return Verdict{Warning: &driver.LateWarning{
		Group: q.Group.Name(), Doing: q.Doing(), Waited: waited, Ranks: q.Group.World(missing),
		Activity: q.activity(rows, missing), Members: q.Group.Ranks,
	}}
}

// activity says what ranks are doing, by world rank.
func (q *Question) activity(rows []Row, ranks []int) map[int]string {
	all := map[int]string{}
	for _, r := range ranks {
		all[q.Group.Ranks[r]] = rows[r].String()
	}
	return all
}

// PeerFailure says why a group cannot go on of which a peer is lost, has failed or has left: a
// RankLostError, PeerError or StrayError.
func PeerFailure(group driver.GroupConfig, rows []Row, doing string) error {
	q := Question{Group: group}
	if lost := q.those(rows, (*Row).dead); len(lost) > 0 {
		return &driver.RankLostError{
			Ranks: group.World(lost), Doing: doing, Members: group.Ranks,
		}
	}
	if err := PeerFault(group, rows, func() string { return doing }); err != nil {
		return err
	}
	if left := q.those(rows, func(r *Row) bool { return r.Left }); len(left) > 0 {
		return &driver.StrayError{
			Doing: doing, Elsewhere: q.activity(rows, left), Members: group.Ranks,
		}
	}
	return &driver.PeerError{Doing: doing, Members: group.Ranks}
}

// SomePeerFault is PeerFault where a peer has failed for certain, although no row may say so yet.
func SomePeerFault(group driver.GroupConfig, rows []Row, doing func() string) error {
	if err := PeerFault(group, rows, doing); err != nil {
		return err
	}
	return &driver.PeerError{Doing: doing(), Members: group.Ranks}
}

// PeerFault returns a PeerError that names the other ranks which have failed, without those that
// failed only because others had, or nil if none has.
func PeerFault(group driver.GroupConfig, rows []Row, doing func() string) error {
	var first, followed []int
	aborted := false
	for r := range rows {
		switch reason := rows[r].Failed; {
		case r == group.Rank || reason == NotFailed:
		case reason == Followed:
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
func Interrupted(q *Question, rows []Row, cause error) error {
	missing := q.those(rows, func(r *Row) bool { return r.Missing })
	if len(missing) == 0 {
		return fmt.Errorf("%s: %w", q.Doing(), cause)
	}
	late := driver.TimeoutError{
		Doing: q.Doing(), Waited: q.Waited.Round(time.Millisecond),
		Missing: q.Group.World(missing), Activity: q.activity(rows, missing),
		Members: q.Group.Ranks,
	}
	if errors.Is(cause, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", &late, cause)
	}
	return fmt.Errorf("%s: %w", late.Error(), cause)
}
