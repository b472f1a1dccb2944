package control

import (
	"context"
	"errors"
	"time"

	"symmem/driver"
)

// minWait is the shortest wait after which other ranks count as late. Ranks that were ready, and
// waited only for this rank, arrive sooner.
const minWait = 10 * time.Millisecond

// isTooShort reports whether a wait that has reached its deadline was too short to blame the other
// ranks. This happens if the call began shortly before its deadline. A wait for the whole timeout
// of the group is never too short, even if the timeout is less than minWait.
func isTooShort(waited time.Duration, group driver.GroupConfig) bool {
	sufficient := minWait
	if group.Timeout != nil {
		sufficient = min(sufficient, group.Timeout.Get()/2)
	}

	return waited < sufficient
}

// NoteDeadline sets DeadlinePassed and Overrun according to the context of the wait. err is the
// error of the context, which the caller has read before: the deadline may have passed since.
func (w *WaitStatus) NoteDeadline(ctx context.Context, err error) {
	w.DeadlinePassed = errors.Is(err, context.DeadlineExceeded)
	if !w.DeadlinePassed {
		return
	}

	if deadline, ok := ctx.Deadline(); ok {
		w.Overrun = time.Since(deadline)
	}
}

// lateStartError returns the error of a wait that was too short (see isTooShort). The error lists
// no rank as missing, and states that this rank was late.
func lateStartError(
	callText string, waited time.Duration, group driver.GroupConfig,
) *driver.TimeoutError {
	err := &driver.TimeoutError{
		InCall: callText, Waited: waited.Round(time.Millisecond), Members: group.Ranks,
	}
	isMember := group.Rank >= 0 && group.Rank < len(group.Ranks)
	if isMember {
		err.Activity = map[int]string{
			group.Ranks[group.Rank]: "began this call when its deadline had passed or was near",
		}
	}

	return err
}

// NoAnswer is the text in errors for a rank that has not answered a request for its memory.
const NoAnswer = "has not answered a request for its memory"

// Fetch calls request, which asks a group rank to share its memory, and returns the error of
// request. During the call, errors of ranks that wait for this rank name both this rank and the
// group rank. If the group rank does not answer before the deadline of ctx, the plane fails.
func Fetch(
	ctx context.Context, p Plane, group *driver.GroupConfig, rank int, callText string,
	request func() error,
) error {
	begin := time.Now()
	end := func() {}
	if noter, ok := p.(FetchNoter); ok {
		end = noter.NoteFetch(rank)
	}

	err := request()
	if errors.Is(err, context.DeadlineExceeded) {
		// Do not call end, so that errors of waiting ranks go on to name both ranks.
		return p.Fail(UnansweredError(ctx, *group, rank, callText, begin))
	}

	end()
	return err
}

// UnansweredError returns the error of a request for a group rank's memory that the rank has not
// answered before the deadline of ctx. begin is the start of the request. If the rank had too
// little time until the deadline, the error does not name it.
func UnansweredError(
	ctx context.Context, group driver.GroupConfig, rank int, callText string, begin time.Time,
) *driver.TimeoutError {
	waited := time.Since(begin)
	timeToAnswer := waited // without the time since the deadline
	if deadline, ok := ctx.Deadline(); ok {
		timeToAnswer = min(waited, deadline.Sub(begin))
	}

	if isTooShort(timeToAnswer, group) {
		return lateStartError(callText, waited, group)
	}

	missing := group.World([]int{rank})
	return &driver.TimeoutError{
		InCall: callText, Waited: waited.Round(time.Millisecond), Missing: missing,
		Machines: group.MachinesOf(missing), Members: group.Ranks,
		Activity: map[int]string{group.Ranks[rank]: NoAnswer},
	}
}
