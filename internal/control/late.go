package control

import (
	"context"
	"errors"
	"time"

	"symmem/driver"
)

// Rank 0 waits in a call for rank 1, which has not arrived when the deadline of the wait passes.
// The call then fails with a TimeoutError. Usually, the error blames rank 1: it lists rank 1 as
// missing. But if the call began only 1 ms before the deadline, the wait was too short, because
// rank 1 had no time to arrive. The error then blames no rank, and states that this rank (rank 0)
// began late.
//
// Only the time before the deadline counts. If the process of rank 0 is stopped, it may notice the
// deadline 50 ms too late. Rank 1 could not use these 50 ms, the overrun.
//
// A fetch is also a wait: rank 0 asks rank 1 to share its memory, and waits for the answer. If rank
// 2 waits for rank 0 in the meantime, a note about the fetch makes the error of rank 2 blame both.
//
// Errors contain world ranks (numbers in the whole job). A group rank is an index of
// GroupConfig.Ranks, which lists the world ranks of a group.

// minWait is the shortest wait after which other ranks are blamed. Ranks that were ready, and
// waited only for this rank, arrive sooner.
const minWait = 10 * time.Millisecond

// isTooShort reports whether a wait was too short to blame other ranks. waited is how long they had
// time to arrive. The whole timeout of the group is never too short, even if it is less than
// minWait.
func isTooShort(waited time.Duration, group driver.GroupConfig) bool {
	longEnough := minWait
	if group.Timeout != nil {
		halfTimeout := group.Timeout.Get() / 2 // a margin, because waited is not exact
		longEnough = min(longEnough, halfTimeout)
	}

	return waited < longEnough
}

// NoteDeadline records whether the deadline of the wait w has passed, and the overrun. ctx is the
// context of the wait. err is the result of ctx.Err, which the caller has called before. A second
// ctx.Err could return another result, because the deadline may pass in between.
func (w *WaitStatus) NoteDeadline(ctx context.Context, err error) {
	w.DeadlinePassed = errors.Is(err, context.DeadlineExceeded)
	if !w.DeadlinePassed {
		return
	}

	if deadline, ok := ctx.Deadline(); ok {
		w.Overrun = time.Since(deadline)
	}
}

// newTimeoutError returns a TimeoutError that blames no rank. callText names the call.
func newTimeoutError(
	callText string, waited time.Duration, group driver.GroupConfig,
) *driver.TimeoutError {
	rounded := waited.Round(time.Millisecond) // for users
	return &driver.TimeoutError{InCall: callText, Waited: rounded, Members: group.Ranks}
}

// startedLate is the text in errors for this rank after a wait that was too short.
const startedLate = "began this call when its deadline had passed or was near"

// lateStartError returns the error of a wait that was too short. It states that this rank was late.
func lateStartError(
	callText string, waited time.Duration, group driver.GroupConfig,
) *driver.TimeoutError {
	err := newTimeoutError(callText, waited, group)
	// A rank that asks about a group of other ranks has the group rank -1.
	isMember := group.Rank >= 0 && group.Rank < len(group.Ranks)
	if isMember {
		ownWorldRank := group.Ranks[group.Rank]
		err.Activity = map[int]string{ownWorldRank: startedLate}
	}

	return err
}

// Fetch calls request, which fetches memory from a group rank, and returns its error. If the rank
// does not answer before the deadline of ctx, p fails with the result of UnansweredError. (A Plane
// connects the ranks of a group.) callText names the call.
func Fetch(
	ctx context.Context, p Plane, group *driver.GroupConfig, rank int, callText string,
	request func() error,
) error {
	begin := time.Now()
	endNote := noteFetch(p, rank)
	err := request()
	if errors.Is(err, context.DeadlineExceeded) {
		// Do not end the note: errors of waiting ranks must go on to blame both ranks.
		return p.Fail(UnansweredError(ctx, *group, rank, callText, begin))
	}

	endNote()
	return err
}

// noteFetch informs the other ranks of a fetch from a group rank. The note is valid until endNote
// is called. If the plane does not support notes, noteFetch and endNote do nothing.
func noteFetch(p Plane, rank int) (endNote func()) {
	noter, ok := p.(FetchNoter)
	if !ok {
		return func() {}
	}

	return noter.NoteFetch(rank)
}

// NoAnswer is the text in errors for a rank that has not answered a fetch.
const NoAnswer = "has not answered a request for its memory"

// UnansweredError returns the error of a fetch that was not answered before the deadline of ctx.
// begin is the start of the fetch. The error blames the group rank that was asked, unless the wait
// was too short.
func UnansweredError(
	ctx context.Context, group driver.GroupConfig, rank int, callText string, begin time.Time,
) *driver.TimeoutError {
	waited := time.Since(begin)
	timeToAnswer := waited
	if deadline, ok := ctx.Deadline(); ok {
		timeToAnswer = min(waited, deadline.Sub(begin)) // without the overrun
	}

	if isTooShort(timeToAnswer, group) {
		return lateStartError(callText, waited, group)
	}

	worldRank := group.Ranks[rank]
	err := newTimeoutError(callText, waited, group)
	err.Missing = []int{worldRank}
	err.Machines = group.MachinesOf(err.Missing)
	err.Activity = map[int]string{worldRank: NoAnswer}
	return err
}
