package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"symmem/driver"
)

// RankState is a snapshot of what this rank knows about a rank.
//
// From shared memory, read Lost of all ranks first, then Failed and Left, each rank's activity, and
// Missing, in this order. The snapshot then includes everything that a rank did before it failed,
// left or exited.
type RankState struct {
	Missing bool // has not reached the awaited step
	Failed  Reason
	// Completed is set if the rank saw the awaited step complete before it failed, so that the
	// messages of that step are in transit.
	Completed bool
	// Lost means that the process has exited or the connection to it has broken.
	Left, Lost bool
	Submitted  uint64
	// InCollective is the ticket (number) of the collective in which the rank waits, or 0.
	InCollective uint64
	Operation    driver.Operation
	// Exchanges counts the exchanges for agreements that the rank has reached. InExchange is the
	// one in which it waits, or 0.
	Exchanges, InExchange uint64
	Waited                time.Duration
	Message               string
	// FetchesFrom is 1 plus the group rank that has not yet answered this rank's request for its
	// memory. It is 0 without a request, or if this rank is known to be stopped.
	FetchesFrom int
}

func (r *RankState) isLost() bool { return r.Lost && !r.Left && r.Failed != Aborted }

func (r *RankState) isMissing() bool { return r.Missing }

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

// WaitStatus describes a wait of this rank for Judge.
type WaitStatus struct {
	Group    driver.GroupConfig
	CallText func() string
	// Collective is the ticket of the waiting collective, or 0.
	Collective uint64
	// IsExchange is set if this rank launches no collective during the wait.
	IsExchange bool
	// IsWork is set if the wait is for launched work to complete, not for ranks to arrive. Any lost
	// rank ends it. Work with Collective 0 needs no other rank.
	IsWork          bool
	IgnoreFaults    bool
	Cause           error
	Closed          bool
	Waited, Timeout time.Duration
	// DeadlinePassed is set if a deadline other than Timeout has passed, Overrun ago.
	DeadlinePassed bool
	Overrun        time.Duration
	// Stale is set while messages from other ranks may be unread, so that no rank counts as late.
	Stale bool
	// SincePeerFailure is negative if no peer has failed. When it reaches Grace, the wait ends.
	SincePeerFailure time.Duration
	Late             driver.Late
	// SinceWarning is the time since the group's last warning, or negative without one.
	SinceWarning time.Duration
}

// NoteDeadline records whether the deadline of ctx has passed, and how long ago. err is a result of
// ctx.Err.
func (w *WaitStatus) NoteDeadline(ctx context.Context, err error) {
	w.DeadlinePassed = errors.Is(err, context.DeadlineExceeded)
	if !w.DeadlinePassed {
		return
	}

	if deadline, ok := ctx.Deadline(); ok {
		w.Overrun = time.Since(deadline)
	}
}

// Verdict is the decision of Judge. Without an error, the wait continues.
type Verdict struct {
	// Err is WaitStatus.Cause, or a RankLostError, PeerError, DeadlockError or TimeoutError.
	Err error
	// Left is set if Err is a DeadlockError about ranks that have left. The reason may be a lost
	// rank, which is detected within Grace. A caller that can wait should then call Judge again.
	Left    bool
	Warning *driver.LateWarning
}

// Judge decides whether a wait continues. states are in group order. It checks these conditions in
// order, because each may be a consequence of those above it:
//
//	this rank has failed   WaitStatus.Cause
//	a rank is lost         RankLostError: its process exited before it left the group. The error
//	                       lists all lost ranks, even those that reached the awaited step
//	a peer has failed      PeerError: the peer will not arrive
//	a rank is elsewhere    DeadlockError: it has left, or waits for this rank in another call
//	a rank is late         TimeoutError: it is alive but has not arrived in time
//
// A rank that left the group, or aborted it, before its process exited is not lost.
func Judge(w *WaitStatus, states []RankState) Verdict {
	hasCompleted := false
	for i := range states {
		hasCompleted = hasCompleted || states[i].Failed != NotFailed && states[i].Completed
	}

	checkFaults := !w.IgnoreFaults && (w.Closed || !hasCompleted)
	if w.Cause != nil && checkFaults {
		return Verdict{Err: w.Cause}
	}

	if w.IsWork && w.Collective == 0 {
		return Verdict{}
	}

	hasMissingRank := w.anyRank(states, (*RankState).isMissing)
	if !hasMissingRank && !w.IsWork {
		return Verdict{}
	}

	lostRanks := w.ranksWhere(states, (*RankState).isLost)
	if slices.ContainsFunc(lostRanks, func(r int) bool { return w.IsWork || states[r].Missing }) {
		return Verdict{Err: lostError(w.Group, lostRanks, w.CallText())}
	}

	if checkFaults && (hasMissingRank || w.SincePeerFailure >= Grace) {
		if err := FailedPeersError(w.Group, states, w.CallText); err != nil {
			return Verdict{Err: err}
		}
	}

	if err := w.deadlock(states); err != nil {
		leftRanks := w.ranksWhere(states, func(r *RankState) bool { return r.Missing && r.Left })
		return Verdict{Err: err, Left: len(leftRanks) > 0}
	}

	if !hasMissingRank || w.Stale {
		return Verdict{}
	}

	return w.late(states)
}

func (w *WaitStatus) ranksWhere(states []RankState, match func(*RankState) bool) []int {
	var ranks []int
	for r := range states {
		if r != w.Group.Rank && match(&states[r]) {
			ranks = append(ranks, r)
		}
	}

	return ranks
}

// anyRank reports whether ranksWhere is nonempty, without allocating.
func (w *WaitStatus) anyRank(states []RankState, match func(*RankState) bool) bool {
	for r := range states {
		if r != w.Group.Rank && match(&states[r]) {
			return true
		}
	}

	return false
}

func (w *WaitStatus) deadlock(states []RankState) error {
	elsewhereRanks := w.ranksWhere(states, func(r *RankState) bool {
		return r.Missing && w.cannotArrive(&states[w.Group.Rank], r)
	})
	if len(elsewhereRanks) == 0 {
		return nil
	}

	return &driver.DeadlockError{
		InCall: w.CallText(), Activity: w.activity(states, elsewhereRanks), Members: w.Group.Ranks,
	}
}

// cannotArrive reports whether rank r has left or waits for this rank in another call.
func (w *WaitStatus) cannotArrive(own, r *RankState) bool {
	switch {
	case r.Left:
		return true
	case w.Collective != 0:
		return r.InExchange > own.Exchanges && r.Submitted < w.Collective
	case w.IsExchange:
		return r.InCollective > own.Submitted
	}

	return false
}

func (w *WaitStatus) late(states []RankState) Verdict {
	if w.DeadlinePassed || w.Waited >= w.Timeout {
		return Verdict{Err: w.timeoutError(states)}
	}

	// If faults are ignored, only the caller knows which missing ranks may never arrive.
	if w.IgnoreFaults || w.Late.Next(w.Waited, w.SinceWarning) != 0 {
		return Verdict{}
	}

	warning := w.Warning(states)
	warning.Waited = w.Waited.Round(time.Millisecond)
	return Verdict{Warning: warning}
}

// timeoutError lists the missing ranks, unless they had no time to arrive.
func (w *WaitStatus) timeoutError(states []RankState) *driver.TimeoutError {
	if isTooShort(w.timeToArrive(states), w.Group) {
		return lateStartError(w.CallText(), w.Waited, w.Group)
	}

	return w.missingError(states)
}

func (w *WaitStatus) missingError(states []RankState) *driver.TimeoutError {
	late := w.lateRanks(states)
	return &driver.TimeoutError{
		InCall: w.CallText(), Waited: w.Waited.Round(time.Millisecond),
		Missing:  w.Group.World(late),
		Machines: w.Group.MachinesOf(w.Group.World(late)),
		Activity: w.activity(states, late), Members: w.Group.Ranks,
	}
}

// lateRanks lists the missing ranks, and the ranks that have not shared memory with them. Any of
// these may be the stopped one.
func (w *WaitStatus) lateRanks(states []RankState) []int {
	late := w.ranksWhere(states, (*RankState).isMissing)
	for i := 0; i < len(late); i++ {
		source := states[late[i]].FetchesFrom - 1
		if source >= 0 && source < len(states) && source != w.Group.Rank &&
			!slices.Contains(late, source) {
			late = append(late, source)
		}
	}

	slices.Sort(late)
	return late
}

// timeToArrive returns how long this rank, or another one that has arrived, has waited for the
// missing ranks.
func (w *WaitStatus) timeToArrive(states []RankState) (longest time.Duration) {
	if w.Timeout > 0 {
		longest = min(w.Timeout, w.Waited-w.Overrun)
	}

	for r := range states {
		s := &states[r]
		if r != w.Group.Rank && !s.Missing && (s.InCollective != 0 || s.InExchange != 0) {
			longest = max(longest, s.Waited)
		}
	}

	return longest
}

func (w *WaitStatus) activity(states []RankState, ranks []int) map[int]string {
	all := map[int]string{}
	for _, r := range ranks {
		all[w.Group.Ranks[r]] = states[r].String()
	}

	return all
}

// Warning returns nil if no rank is missing.
func (w *WaitStatus) Warning(states []RankState) *driver.LateWarning {
	late := w.lateRanks(states)
	if len(late) == 0 {
		return nil
	}

	return &driver.LateWarning{
		Group: w.Group.Name(), InCall: w.CallText(), Waited: w.Waited, Ranks: w.Group.World(late),
		Machines: w.Group.MachinesOf(w.Group.World(late)),
		Activity: w.activity(states, late), Members: w.Group.Ranks,
	}
}

// Activity describes what the other ranks are doing, by world rank (number in the whole job).
func Activity(group driver.GroupConfig, states []RankState) map[int]string {
	w := WaitStatus{Group: group}
	return w.activity(states, w.ranksWhere(states, func(*RankState) bool { return true }))
}

// PeerFaultError returns an error about peers that were lost, failed or left, in this order.
func PeerFaultError(group driver.GroupConfig, states []RankState, callText string) error {
	w := WaitStatus{Group: group}
	if lostRanks := w.ranksWhere(states, (*RankState).isLost); len(lostRanks) > 0 {
		return lostError(group, lostRanks, callText)
	}

	if err := FailedPeersError(group, states, func() string { return callText }); err != nil {
		return err
	}

	leftRanks := w.ranksWhere(states, func(r *RankState) bool { return r.Left })
	if len(leftRanks) > 0 {
		return &driver.DeadlockError{
			InCall: callText, Activity: w.activity(states, leftRanks), Members: group.Ranks,
		}
	}

	return &driver.PeerError{InCall: callText, Members: group.Ranks}
}

func lostError(group driver.GroupConfig, lost []int, callText string) *driver.RankLostError {
	ranks := group.World(lost)
	return &driver.RankLostError{
		Ranks: ranks, Machines: group.MachinesOf(ranks), InCall: callText, Members: group.Ranks,
	}
}

// Departed returns the world ranks that are lost, and those that have left the group or exited
// after an abort.
func Departed(group driver.GroupConfig, states []RankState) (lostRanks, leftRanks []int) {
	w := WaitStatus{Group: group}
	lostRanks = w.ranksWhere(states, (*RankState).isLost)
	leftRanks = w.ranksWhere(states, func(r *RankState) bool {
		return (r.Left || r.Lost) && !r.isLost()
	})
	return group.World(lostRanks), group.World(leftRanks)
}

// NonNilFailedPeersError is like FailedPeersError, but returns a PeerError without ranks instead of
// nil.
func NonNilFailedPeersError(
	group driver.GroupConfig, states []RankState, callText func() string,
) error {
	if err := FailedPeersError(group, states, callText); err != nil {
		return err
	}

	return &driver.PeerError{InCall: callText(), Members: group.Ranks}
}

// FailedPeersError returns a PeerError about other ranks that have failed, or nil. It omits ranks
// that failed only because another rank had failed, unless all did.
func FailedPeersError(group driver.GroupConfig, states []RankState, callText func() string) error {
	var failedRanks, failedAfterPeer []int
	isAborted := false
	for r := range states {
		switch reason := states[r].Failed; {
		case r == group.Rank || reason == NotFailed:
		case reason == FailedAfterPeer:
			failedAfterPeer = append(failedAfterPeer, group.Ranks[r])
		default:
			failedRanks = append(failedRanks, group.Ranks[r])
			isAborted = isAborted || reason == Aborted
		}
	}

	if len(failedRanks) == 0 {
		failedRanks = failedAfterPeer
	}

	if len(failedRanks) == 0 {
		return nil
	}

	return &driver.PeerError{
		InCall: callText(), Ranks: failedRanks, Aborted: isAborted, Members: group.Ranks,
	}
}

// InterruptedWaitError returns the error of a wait whose context is done. It lists the missing
// ranks and wraps cause.
func InterruptedWaitError(w *WaitStatus, states []RankState, cause error) error {
	if !w.anyRank(states, (*RankState).isMissing) {
		return fmt.Errorf("%s: %w", w.CallText(), cause)
	}

	if errors.Is(cause, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", w.timeoutError(states), cause)
	}

	return fmt.Errorf("%s: %w", w.missingError(states).Error(), cause)
}
