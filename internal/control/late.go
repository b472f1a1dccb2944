package control

import (
	"context"
	"errors"
	"time"

	"symmem/driver"
)

// The error of a wait that times out blames the missing ranks. If the wait began shortly before its
// deadline, the error blames this rank instead.

// minWait is the shortest wait after which other ranks are blamed. Ranks that waited only for this
// rank arrive sooner.
const minWait = 10 * time.Millisecond

// isTooShort reports whether other ranks had too little time to arrive: less than minWait and less
// than half of the group's timeout.
func isTooShort(waited time.Duration, group driver.GroupConfig) bool {
	enough := minWait
	if group.Timeout != nil {
		halfTimeout := group.Timeout.Get() / 2
		enough = min(enough, halfTimeout)
	}

	return waited < enough
}

// newTimeoutError returns an error that blames no rank.
func newTimeoutError(
	callText string, waited time.Duration, group driver.GroupConfig,
) *driver.TimeoutError {
	rounded := waited.Round(time.Millisecond)
	return &driver.TimeoutError{InCall: callText, Waited: rounded, Members: group.Ranks}
}

// lateStartError returns an error that blames this rank, for a wait that was too short.
func lateStartError(
	callText string, waited time.Duration, group driver.GroupConfig,
) *driver.TimeoutError {
	err := newTimeoutError(callText, waited, group)
	isMember := group.Rank >= 0 && group.Rank < len(group.Ranks)
	if isMember {
		ownWorldRank := group.Ranks[group.Rank]
		err.Activity = map[int]string{ownWorldRank: startedLate}
	}

	return err
}

// startedLate describes this rank in a lateStartError.
const startedLate = "began this call when its deadline had passed or was near"

// FetchNoter is an optional interface of a Plane that mentions fetches in errors. In a fetch, a
// rank asks another to share its memory.
type FetchNoter interface {
	// NoteFetch announces a fetch from a group rank, until end is called. Ranks that wait for this
	// rank then blame both ranks in errors.
	NoteFetch(rank int) (end func())
}

// Fetch calls request, which asks a group rank to share its memory, and returns the error of
// request. If the rank does not answer before the deadline of ctx, Fetch makes the plane fail with
// an UnansweredError.
func Fetch(
	ctx context.Context, p Plane, group *driver.GroupConfig, rank int, callText string,
	request func() error,
) error {
	begin := time.Now()
	endNote := func() {}
	if noter, ok := p.(FetchNoter); ok {
		endNote = noter.NoteFetch(rank)
	}

	err := request()
	if errors.Is(err, context.DeadlineExceeded) {
		// The note stays, so that ranks that wait for this rank also blame the other one.
		return p.Fail(UnansweredError(ctx, *group, rank, callText, begin))
	}

	endNote()
	return err
}

// UnansweredError returns the error of a fetch, started at begin, that a group rank did not answer
// before the deadline of ctx. It blames that rank, unless the wait was too short.
func UnansweredError(
	ctx context.Context, group driver.GroupConfig, rank int, callText string, begin time.Time,
) *driver.TimeoutError {
	waited := time.Since(begin)
	timeToAnswer := waited
	if deadline, ok := ctx.Deadline(); ok {
		// The delay after the deadline does not count as time to answer.
		timeToAnswer = min(waited, deadline.Sub(begin))
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

// NoAnswer describes a rank in errors of fetches.
const NoAnswer = "has not answered a request for its memory"
