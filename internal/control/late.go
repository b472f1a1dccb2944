package control

import (
	"context"
	"errors"
	"time"

	"symmem/driver"
)

// minWait is longer than other ranks take to arrive if this rank was all that they waited for.
const minWait = 10 * time.Millisecond

// isTooShort reports whether a wait that has reached its deadline began so late that the other
// ranks had no time to arrive. A wait with the whole timeout of the group is never too short.
func isTooShort(waited time.Duration, group driver.GroupConfig) bool {
	enough := minWait
	if group.Timeout != nil {
		enough = min(enough, group.Timeout.Get()/2)
	}
	return waited < enough
}

// NoteDeadline notes whether the deadline of the caller's context has passed, and how long ago. err
// is the context's error.
func (w *WaitStatus) NoteDeadline(ctx context.Context, err error) {
	w.DeadlinePassed = errors.Is(err, context.DeadlineExceeded)
	if deadline, has := ctx.Deadline(); has && w.DeadlinePassed {
		w.Overrun = time.Since(deadline)
	}
}

// lateStartError returns the error of a wait that was too short. It lists no rank as missing, and
// says that this rank was late itself.
func lateStartError(
	callText string, waited time.Duration, group driver.GroupConfig,
) *driver.TimeoutError {
	err := &driver.TimeoutError{
		InCall: callText, Waited: waited.Round(time.Millisecond), Members: group.Ranks,
	}
	if group.Rank >= 0 && group.Rank < len(group.Ranks) {
		err.Activity = map[int]string{
			group.Ranks[group.Rank]: "began this call when its deadline had passed or was near",
		}
	}
	return err
}

// NoAnswer describes a rank that has not answered a request for its memory.
const NoAnswer = "has not answered a request for its memory"

// Fetch calls request, which asks a group rank to share its memory. Meanwhile, errors of ranks that
// wait for this rank name both ranks. The plane fails if the rank does not answer before the
// deadline of ctx.
func Fetch(
	ctx context.Context, p Plane, group *driver.GroupConfig, rank int, callText string,
	request func() error,
) error {
	begin, end := time.Now(), func() {}
	if noter, ok := p.(FetchNoter); ok {
		end = noter.NoteFetch(rank)
	}
	err := request()
	if errors.Is(err, context.DeadlineExceeded) {
		return p.Fail(UnansweredError(ctx, *group, rank, callText, begin))
	}
	end()
	return err
}

// UnansweredError returns the error of a request for a group rank's memory that the rank has not
// answered before the deadline of ctx. Time after the deadline is not time to answer.
func UnansweredError(
	ctx context.Context, group driver.GroupConfig, rank int, callText string, begin time.Time,
) *driver.TimeoutError {
	waited := time.Since(begin)
	timeToAnswer := waited
	if deadline, has := ctx.Deadline(); has {
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
