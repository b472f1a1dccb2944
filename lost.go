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
	// AwaitEnded waits until enough returns true for those of the ranks that have ended so far, or
	// until the context ends, and returns them.
	AwaitEnded(ctx context.Context, ranks []int, enough func([]*rendezvous.EndedError) bool,
	) []*rendezvous.EndedError
	// Leave announces that this rank ends, and why, which may be empty. The rank that serves the
	// store waits until the others have left or the context ends.
	Leave(ctx context.Context, why string) error
}

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
	defer context.AfterFunc(ctx, func() { time.AfterFunc(time.Until(minDeadline), cancel) })()
	return m.watcher.Leave(waitCtx, m.leaveReason())
}

// runWithRanks runs a step, and cancels it and explains its error if one of the ranks ends.
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

// closeDevice closes the device. If ranks end without leaving, Close waits for them only briefly.
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
	lost := make(chan int, 1)
	go func() { lost <- m.reportLosses(ctx, all, listener) }()
	err := d.Close()
	cancel()
	if <-lost > 0 && err != nil {
		return m.explainRankLoss(context.Background(), "closing symmem", all, err)
	}
	return err
}

// reportLosses reports ranks that end without leaving, until the context ends. It returns their
// number.
func (m *rankMonitor) reportLosses(
	ctx context.Context, ranks []int, listener driver.LossListener,
) (known int) {
	for ctx.Err() == nil {
		ended := m.watcher.AwaitEnded(ctx, ranks, func(ended []*rendezvous.EndedError) bool {
			return len(endedWithoutLeaving(ended)) > known
		})
		var lost []int
		for _, e := range endedWithoutLeaving(ended) {
			lost = append(lost, e.Rank)
		}
		if len(lost) == known {
			break
		}
		known = len(lost)
		listener.RanksLost(lost)
	}
	return known
}

// explainRankLoss returns an error that names the ranks that have ended, if err may be due to them,
// and otherwise err. It waits up to endDetectionDelay.
func (m *rankMonitor) explainRankLoss(
	ctx context.Context, operation string, ranks []int, err error,
) error {
	var lostErr *RankLostError
	wait := endDetectionDelay / 2
	isRankLost, isPossibleLoss := errors.As(err, &lostErr), mayBeCausedByRankLoss(err)
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
	switch endedUnexpectedly := m.addObservedEnds(ranks, endedWithoutLeaving(ended)); {
	case len(endedUnexpectedly) > 0 && (isRankLost || isPossibleLoss):
		return newRankLostError(operation, endedUnexpectedly)
	case len(endedUnexpectedly) > 0:
		lost := newRankLostError(operation, endedUnexpectedly)
		return fmt.Errorf("%w; this rank returned: %w", lost, err)
	case isAwaitingOthers(err, ended):
		return err
	case len(ended) > 0 && isPossibleLoss && !isRankLost:
		return newRankLeftError(operation, ended)
	}
	return err
}

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

func cannotBeRankLoss(err error) bool {
	for _, cause := range []error{ErrInvalid, ErrUnsupported, ErrOutOfMemory, ErrClosed, ErrAborted} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return errors.As(err, new(*DivergenceError)) || errors.As(err, new(*MismatchError))
}

func haveAllEnded(ended []*rendezvous.EndedError, ranks []int) bool {
	for _, r := range ranks {
		if !slices.ContainsFunc(ended, func(e *rendezvous.EndedError) bool { return e.Rank == r }) {
			return false
		}
	}
	return true
}

func newRankLostError(operation string, ended []*rendezvous.EndedError) *RankLostError {
	var ranks []int
	var texts []string
	for _, e := range ended {
		ranks, texts = append(ranks, e.Rank), append(texts, e.Description)
	}
	return &RankLostError{
		Ranks: ranks, InCall: fmt.Sprintf("%s (%s)", operation, strings.Join(texts, "; ")),
		Left: len(endedWithoutLeaving(ended)) == 0,
	}
}

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
	openCount atomic.Int32
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

func (m *rankMonitor) recordResult(err error) {
	if errors.Is(err, ErrClosed) {
		return
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
