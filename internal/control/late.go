package control

import (
	"context"
	"errors"
	"time"

	"symmem/driver"
)

// The error of a wait that times out blames the ranks that did not arrive. If the wait began
// shortly before its deadline, the error instead says that this rank began late. The overrun, the
// delay until a process notices its deadline, does not count as time to arrive.
//
// Errors contain world ranks, numbers in the whole job. A group rank is an index of
// GroupConfig.Ranks.

// minWait is the shortest wait after which other ranks are blamed. Ranks that were ready, and
// waited only for this rank, arrive sooner.
const minWait = 10 * time.Millisecond

// isTooShort reports whether other ranks had too little time to arrive. A group's timeout may be
// less than minWait, and a wait of the whole timeout is long enough.
func isTooShort(waited time.Duration, group driver.GroupConfig) bool {
	enough := minWait
	if group.Timeout != nil {
		halfTimeout := group.Timeout.Get() / 2 // half, because waited is not exact
		enough = min(enough, halfTimeout)
	}

	return waited < enough
}

// NoteDeadline records whether the deadline of ctx, the context of the wait, has passed, and the
// overrun. err is the result of ctx.Err on which the caller acts. A new call could return another.
func (w *WaitStatus) NoteDeadline(ctx context.Context, err error) {
	w.DeadlinePassed = errors.Is(err, context.DeadlineExceeded)
	if !w.DeadlinePassed {
		return
	}

	if deadline, ok := ctx.Deadline(); ok {
		w.Overrun = time.Since(deadline)
	}
}

// newTimeoutError returns an error that blames no rank.
func newTimeoutError(
	callText string, waited time.Duration, group driver.GroupConfig,
) *driver.TimeoutError {
	rounded := waited.Round(time.Millisecond)
	return &driver.TimeoutError{InCall: callText, Waited: rounded, Members: group.Ranks}
}

// startedLate describes this rank in the error of a wait that was too short.
const startedLate = "began this call when its deadline had passed or was near"

// lateStartError returns the error of a wait that was too short.
func lateStartError(
	callText string, waited time.Duration, group driver.GroupConfig,
) *driver.TimeoutError {
	err := newTimeoutError(callText, waited, group)
	// group.Rank is -1 if this rank is not a member.
	isMember := group.Rank >= 0 && group.Rank < len(group.Ranks)
	if isMember {
		ownWorldRank := group.Ranks[group.Rank]
		err.Activity = map[int]string{ownWorldRank: startedLate}
	}

	return err
}

// Fetch calls request, which asks a group rank to share its memory, and returns the error of
// request. If the rank does not answer before the deadline of ctx, the plane fails with the result
// of UnansweredError.
func Fetch(
	ctx context.Context, p Plane, group *driver.GroupConfig, rank int, callText string,
	request func() error,
) error {
	begin := time.Now()
	endNote := noteFetch(p, rank)
	err := request()
	if errors.Is(err, context.DeadlineExceeded) {
		// Without endNote, errors of ranks that wait for this rank continue to blame both ranks.
		return p.Fail(UnansweredError(ctx, *group, rank, callText, begin))
	}

	endNote()
	return err
}

// noteFetch is FetchNoter.NoteFetch, or has no effect if the plane does not implement it.
func noteFetch(p Plane, rank int) (endNote func()) {
	noter, ok := p.(FetchNoter)
	if !ok {
		return func() {}
	}

	return noter.NoteFetch(rank)
}

// NoAnswer describes, in errors, a rank that has not answered a fetch.
const NoAnswer = "has not answered a request for its memory"

// UnansweredError returns the error of a fetch, started at begin, that a group rank did not answer
// before the deadline of ctx. It blames that rank, unless the wait was too short.
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
