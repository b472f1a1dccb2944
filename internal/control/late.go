package control

import (
	"context"
	"errors"
	"time"

	"symmem/driver"
)

// The error of a wait that times out blames the missing ranks. If the wait began shortly before its
// deadline, the error blames this rank instead.

// minWait is the shortest wait after which other ranks are blamed.
const minWait = 10 * time.Millisecond

// isTooShort reports whether other ranks had too little time to arrive: less than minWait, or less
// than half of the group's timeout if that is shorter.
func isTooShort(waited time.Duration, group driver.GroupConfig) bool {
	enough := minWait
	if group.Timeout != nil {
		halfTimeout := group.Timeout.Get() / 2
		enough = min(enough, halfTimeout)
	}

	return waited < enough
}

// newTimeoutError returns an error without Missing and Activity.
func newTimeoutError(
	callText string, waited time.Duration, group driver.GroupConfig,
) *driver.TimeoutError {
	rounded := waited.Round(time.Millisecond)
	return &driver.TimeoutError{InCall: callText, Waited: rounded, Members: group.Ranks}
}

// lateStartError returns an error that blames this rank.
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

// FetchNoter is an optional interface of a Plane for fetches: requests for another rank's memory.
type FetchNoter interface {
	// NoteFetch announces a fetch from a group rank. Until end is called, ranks that wait for this
	// rank blame both ranks in errors.
	NoteFetch(rank int) (end func())
}

// Fetch calls request, which fetches from a group rank, and returns its error. For
// context.DeadlineExceeded, Fetch makes the plane fail and returns an UnansweredError instead.
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
		// Skip endNote, so that ranks that wait for this rank also blame the other one.
		return p.Fail(UnansweredError(ctx, *group, rank, callText, begin))
	}

	endNote()
	return err
}

// UnansweredError returns an error about a fetch that a group rank did not answer before the
// deadline of ctx. It blames that rank, or this rank if the fetch began too late.
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
