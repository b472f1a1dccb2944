package symmem

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"symmem/driver"
	"symmem/internal/handoff"
	"symmem/internal/ranked"
	"symmem/internal/rendezvous"
)

// rankWatcher detects which ranks of the world have ended: their processes have ended, or they have
// closed their Runtime.
type rankWatcher interface {
	// Guard returns a context that is canceled with a *rendezvous.EndedError when one of the ranks
	// has ended. The caller must call stop.
	Guard(ctx context.Context, ranks []int) (guarded context.Context, stop func())
	// AwaitEnded returns those of the ranks that have ended so far. It first waits until enough
	// returns true for them, or until the context ends.
	AwaitEnded(ctx context.Context, ranks []int, enough func([]*rendezvous.EndedError) bool,
	) []*rendezvous.EndedError
	// Leave announces that this rank ends, and why; why may be empty. One rank serves the store,
	// through which ranks find each other. On this rank, Leave waits until the others have left or
	// the context ends.
	Leave(ctx context.Context, why string) error
}

// rankMonitor explains errors by ranks that have ended.
type rankMonitor struct {
	watcher   rankWatcher
	observer  driver.EndObserver // nil if the world's communicator cannot detect ended ranks
	mu        *ranked.Mutex[runtimeMu]
	joinError error // from the latest join of a group; guarded by mu
}

const (
	// leaveTimeout is the minimum wait of the rank that serves the store.
	leaveTimeout = time.Second
	// endDetectionDelay is the time that rankWatcher needs to detect the end of a process.
	endDetectionDelay = time.Second
)

// leaveWorld waits for the other ranks to leave, until the deadline or the end of the context, but
// at least for leaveTimeout.
func (m *rankMonitor) leaveWorld(ctx context.Context, deadline time.Time) error {
	minDeadline := time.Now().Add(leaveTimeout)
	if deadline.Before(minDeadline) {
		deadline = minDeadline
	}

	waitCtx, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	defer cancel()
	cancelAtMinDeadline := func() { time.AfterFunc(time.Until(minDeadline), cancel) }
	stop := context.AfterFunc(ctx, cancelAtMinDeadline)
	defer stop()
	return m.watcher.Leave(waitCtx, m.leaveReason())
}

// runWithRanks runs a step, such as joining a group. If one of the ranks ends meanwhile, it cancels
// the step and returns an error that names the rank.
func (m *rankMonitor) runWithRanks(
	ctx context.Context, operation string, ranks []int, step func(context.Context) error,
) error {
	guarded, stop := m.watcher.Guard(ctx, ranks)
	defer stop()
	err := step(guarded)
	if err == nil || cannotBeRankLoss(err) {
		return err
	}

	return m.explainRankLoss(ctx, operation, ranks, err)
}

// closeDevice closes the device, which waits for the other ranks of a world of the given size. It
// reports ranks that end without leaving to the device, so that Close waits for them only briefly.
func (m *rankMonitor) closeDevice(d driver.Device, size int) error {
	listener, ok := d.(driver.LossListener)
	if !ok || size == 1 {
		return d.Close()
	}

	all := make([]int, size)
	for r := range all {
		all[r] = r
	}

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	lostCounts := make(chan int, 1)
	go func() { lostCounts <- m.reportLosses(ctx, all, listener) }()
	err := d.Close()
	cancel()
	lostCount := <-lostCounts
	if lostCount > 0 && err != nil {
		return m.explainRankLoss(context.Background(), "closing symmem", all, err)
	}

	return err
}

// reportLosses reports ranks that end without leaving to the listener, until the context ends. It
// returns their number.
func (m *rankMonitor) reportLosses(
	ctx context.Context, ranks []int, listener driver.LossListener,
) (reportedCount int) {
	for ctx.Err() == nil {
		ended := m.watcher.AwaitEnded(ctx, ranks, func(ended []*rendezvous.EndedError) bool {
			return len(endedWithoutLeaving(ended)) > reportedCount
		})
		var lost []int
		for _, e := range endedWithoutLeaving(ended) {
			lost = append(lost, e.Rank)
		}

		if len(lost) == reportedCount { // the context has ended
			break
		}

		listener.RanksLost(lost)
		reportedCount = len(lost)
	}

	return reportedCount
}

// explainRankLoss returns an error that names the ranks that have ended, if err may be due to them.
// Otherwise, it returns err. It waits up to endDetectionDelay for ends to be detected.
func (m *rankMonitor) explainRankLoss(
	ctx context.Context, operation string, ranks []int, err error,
) error {
	var lostErr *RankLostError
	isRankLost := errors.As(err, &lostErr) // err says that certain ranks are lost
	isPossibleLoss := mayBeCausedByRankLoss(err)
	wait := endDetectionDelay / 2
	if isRankLost || isPossibleLoss {
		wait = endDetectionDelay
	}

	waitCtx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	ended := m.watcher.AwaitEnded(waitCtx, ranks, func(ended []*rendezvous.EndedError) bool {
		switch {
		case isRankLost:
			return haveAllEnded(ended, lostErr.Ranks)
		case isPossibleLoss:
			return len(ended) > 0
		default:
			return len(endedWithoutLeaving(ended)) > 0
		}
	})
	// A rank may have left because a process ended, so prefer that process as the explanation.
	endedUnexpectedly := m.addObservedEnds(ranks, endedWithoutLeaving(ended))
	if len(endedUnexpectedly) > 0 {
		lost := newRankLostError(operation, endedUnexpectedly)
		if isRankLost || isPossibleLoss {
			return lost
		}

		return fmt.Errorf("%w; this rank returned: %w", lost, err)
	}

	if isAwaitingOthers(err, ended) {
		return err
	}

	haveRanksLeft := len(ended) > 0
	if haveRanksLeft && isPossibleLoss && !isRankLost {
		return newRankLeftError(operation, ended)
	}

	return err
}

// endedWithoutLeaving returns the ranks whose processes ended before they closed their Runtime.
func endedWithoutLeaving(ended []*rendezvous.EndedError) []*rendezvous.EndedError {
	return slices.DeleteFunc(slices.Clone(ended), func(e *rendezvous.EndedError) bool {
		return e.HasLeft
	})
}

// addObservedEnds adds the ranks whose end the communicator has observed. The watcher misses them
// if the rank that serves the store has ended.
func (m *rankMonitor) addObservedEnds(
	ranks []int, ended []*rendezvous.EndedError,
) []*rendezvous.EndedError {
	if m.observer == nil {
		return ended
	}

	for _, rank := range m.observer.EndedRanks() {
		if slices.Contains(ranks, rank) && !haveAllEnded(ended, []int{rank}) {
			text := fmt.Sprintf("the process of rank %d has ended", rank)
			ended = append(ended, &rendezvous.EndedError{Rank: rank, Description: text})
		}
	}

	slices.SortFunc(ended, func(a, b *rendezvous.EndedError) int { return a.Rank - b.Rank })
	return ended
}

// cannotBeRankLoss reports whether err has a cause other than a rank that has ended.
func cannotBeRankLoss(err error) bool {
	for _, cause := range []error{ErrInvalid, ErrUnsupported, ErrOutOfMemory, ErrClosed, ErrAborted} {
		if errors.Is(err, cause) {
			return true
		}
	}

	return errors.As(err, new(*DivergenceError)) || errors.As(err, new(*MismatchError))
}

// haveAllEnded reports whether ended contains all of the ranks.
func haveAllEnded(ended []*rendezvous.EndedError, ranks []int) bool {
	for _, rank := range ranks {
		hasEnded := slices.ContainsFunc(ended, func(e *rendezvous.EndedError) bool {
			return e.Rank == rank
		})
		if !hasEnded {
			return false
		}
	}

	return true
}

func newRankLostError(operation string, ended []*rendezvous.EndedError) *RankLostError {
	var ranks []int
	var texts []string
	for _, e := range ended {
		ranks = append(ranks, e.Rank)
		texts = append(texts, e.Description)
	}

	return &RankLostError{
		Ranks: ranks, InCall: fmt.Sprintf("%s (%s)", operation, strings.Join(texts, "; ")),
		Left: len(endedWithoutLeaving(ended)) == 0,
	}
}

// mayBeCausedByRankLoss reports whether err is typical of a rank that has ended, for example a
// closed connection or a timeout. Other errors can still have that cause, unless cannotBeRankLoss.
func mayBeCausedByRankLoss(err error) bool {
	for _, target := range []error{
		driver.ErrFault, rendezvous.ErrLost, io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET,
		syscall.ECONNREFUSED, syscall.EPIPE, syscall.ESRCH, handoff.ErrUnknownKey,
		context.Canceled, context.DeadlineExceeded, os.ErrDeadlineExceeded,
	} {
		if errors.Is(err, target) {
			return true
		}
	}

	return errors.As(err, new(*rendezvous.EndedError)) || errors.As(err, new(*TimeoutError))
}

// toRankError converts the errors of package rendezvous about ranks: to a RankLostError, or to an
// AbsentError. It returns other errors unchanged.
func toRankError(err error) error {
	var ended *rendezvous.EndedError
	if errors.As(err, &ended) {
		return newRankLostError("meeting all ranks", []*rendezvous.EndedError{ended})
	}

	return toAbsentError(err)
}

// localWorld implements rankWatcher for ranks of one process, which end together.
type localWorld struct {
	store     io.Closer
	openCount atomic.Int32 // ranks that have not left
}

// Guard returns ctx.
func (w *localWorld) Guard(ctx context.Context, _ []int) (context.Context, func()) {
	return ctx, func() {}
}

// AwaitEnded returns nil.
func (w *localWorld) AwaitEnded(
	context.Context, []int, func([]*rendezvous.EndedError) bool,
) []*rendezvous.EndedError {
	return nil
}

// Leave closes the store when the last rank leaves.
func (w *localWorld) Leave(context.Context, string) error {
	if w.openCount.Add(-1) > 0 {
		return nil
	}

	return w.store.Close()
}

// recordResult records the result of a join of a group or of a failed Open, for leaveReason.
func (m *rankMonitor) recordResult(err error) {
	if errors.Is(err, ErrClosed) {
		return // Runtime.Close has interrupted the call
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	m.joinError = err
}

// leaveReason returns joinError, encoded for the other ranks, or "".
func (m *rankMonitor) leaveReason() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.joinError == nil {
		return ""
	}

	encoded, _ := json.Marshal(reportOf(m.joinError)) // cannot fail for strings and numbers
	return string(encoded)
}
