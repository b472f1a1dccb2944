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

// rankWatcher detects which ranks of the world have ended: their process has ended, or they have
// closed symmem.
type rankWatcher interface {
	// Guard returns a context that is canceled soon after one of the given ranks has ended, with a
	// *rendezvous.EndedError as its cause. The caller must call stop.
	Guard(ctx context.Context, ranks []int) (guarded context.Context, stop func())
	// Ended returns those of the given ranks that have ended. It first waits until enough returns
	// true for these ranks, or until the context ends.
	Ended(ctx context.Context, ranks []int, enough func([]*rendezvous.EndedError) bool,
	) []*rendezvous.EndedError
	// Leave leaves the world and stores the reason, or "", for the other ranks. On the rank that
	// serves the store, Leave waits until the other ranks have left or the context ends.
	Leave(ctx context.Context, why string) error
}

// rankMonitor determines whether a step of this rank fails because other ranks have ended.
type rankMonitor struct {
	watcher  rankWatcher
	observer driver.EndObserver // nil if the world's communicator cannot detect ended ranks
	mu       *ranked.Mutex[runtimeMu]
	failure  error // error of the latest attempt to create a group; guarded by mu
}

const (
	// leaveTimeout is the minimum time that the rank that serves the store waits for the others.
	leaveTimeout = time.Second
	// endDetectionDelay is the time for detecting that a rank has ended after its connection has
	// broken.
	endDetectionDelay = time.Second
)

// leave waits for other ranks until due or until the context ends, but at least for leaveTimeout.
func (m *rankMonitor) leave(ctx context.Context, due time.Time) error {
	earliest := time.Now().Add(leaveTimeout)
	if due.Before(earliest) {
		due = earliest
	}
	waitCtx, cancel := context.WithDeadline(context.WithoutCancel(ctx), due)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(time.Until(earliest), cancel) })()
	return m.watcher.Leave(waitCtx, m.leaveReason())
}

// withRanks runs a step that needs the given ranks. If one of them ends, withRanks soon returns a
// RankLostError that names that rank.
func (m *rankMonitor) withRanks(
	ctx context.Context, operation string, ranks []int, step func(context.Context) error,
) error {
	guarded, stop := m.watcher.Guard(ctx, ranks)
	defer stop()
	err := step(guarded)
	if err == nil || cannotBeRankLoss(err) {
		return err
	}
	return m.explainLost(ctx, operation, ranks, err)
}

// explainLost returns a RankLostError if one of the given ranks has ended and may have caused err.
// Otherwise, it returns err. The end of a rank may be detected late, so it waits a moment first.
func (m *rankMonitor) explainLost(
	ctx context.Context, operation string, ranks []int, err error,
) error {
	var lost *RankLostError
	wait, alreadyLost, mayBeLost := endDetectionDelay/2, errors.As(err, &lost), mayBeRankLoss(err)
	if alreadyLost || mayBeLost {
		wait = endDetectionDelay
	}
	waitCtx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	ended := m.watcher.Ended(waitCtx, ranks, func(known []*rendezvous.EndedError) bool {
		switch {
		case alreadyLost:
			return allEnded(known, lost.Ranks)
		case mayBeLost:
			return len(known) > 0
		default:
			return len(deadRanks(known)) > 0
		}
	})
	// Some ranks may have left because others died, so a dead rank is the better explanation.
	switch dead := m.addObserved(ranks, deadRanks(ended)); {
	case len(dead) > 0 && (alreadyLost || mayBeLost):
		return lostError(operation, dead)
	case len(dead) > 0:
		return fmt.Errorf("%w; this rank got: %w", lostError(operation, dead), err)
	case awaitsOthers(err, ended):
		return err
	case len(ended) > 0 && mayBeLost && !alreadyLost:
		return leftError(operation, ended)
	}
	return err
}

func deadRanks(ended []*rendezvous.EndedError) []*rendezvous.EndedError {
	return slices.DeleteFunc(slices.Clone(ended), func(e *rendezvous.EndedError) bool {
		return e.Left
	})
}

// addObserved adds to dead those of the given ranks that this rank itself has seen end. They may be
// missing in dead if the rank that serves the store has ended, too.
func (m *rankMonitor) addObserved(
	ranks []int, dead []*rendezvous.EndedError,
) []*rendezvous.EndedError {
	if m.observer == nil {
		return dead
	}
	for _, rank := range m.observer.EndedRanks() {
		if slices.Contains(ranks, rank) && !allEnded(dead, []int{rank}) {
			how := fmt.Sprintf("the process of rank %d has ended", rank)
			dead = append(dead, &rendezvous.EndedError{Rank: rank, How: how})
		}
	}
	slices.SortFunc(dead, func(a, b *rendezvous.EndedError) int { return a.Rank - b.Rank })
	return dead
}

func cannotBeRankLoss(err error) bool {
	for _, cause := range []error{ErrInvalid, ErrUnsupported, ErrOutOfMemory, ErrClosed, ErrAborted} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return errors.As(err, new(*DivergenceError)) || errors.As(err, new(*MismatchError))
}

func allEnded(known []*rendezvous.EndedError, ranks []int) bool {
	for _, r := range ranks {
		if !slices.ContainsFunc(known, func(e *rendezvous.EndedError) bool { return e.Rank == r }) {
			return false
		}
	}
	return true
}

func lostError(operation string, ended []*rendezvous.EndedError) *RankLostError {
	var ranks []int
	var how []string
	for _, e := range ended {
		ranks, how = append(ranks, e.Rank), append(how, e.How)
	}
	return &RankLostError{
		Ranks: ranks, InCall: fmt.Sprintf("%s (%s)", operation, strings.Join(how, "; ")),
		Left: len(deadRanks(ended)) == 0,
	}
}

// mayBeRankLoss reports whether the end of another rank may have caused err.
func mayBeRankLoss(err error) bool {
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

func asRankError(err error) error {
	var ended *rendezvous.EndedError
	if errors.As(err, &ended) {
		return lostError("meeting all ranks", []*rendezvous.EndedError{ended})
	}
	return asAbsentError(err)
}

// localWorld implements rankWatcher for ranks that share one process and therefore end together.
type localWorld struct {
	store     io.Closer
	remaining atomic.Int32
}

// Guard returns ctx.
func (w *localWorld) Guard(ctx context.Context, _ []int) (context.Context, func()) {
	return ctx, func() {}
}

// Ended returns nil.
func (w *localWorld) Ended(
	context.Context, []int, func([]*rendezvous.EndedError) bool,
) []*rendezvous.EndedError {
	return nil
}

// Leave closes the store when the last rank leaves.
func (w *localWorld) Leave(context.Context, string) error {
	if w.remaining.Add(-1) > 0 {
		return nil
	}
	return w.store.Close()
}

// noteResult records the result of the latest attempt to join a group, for leaveReason.
func (m *rankMonitor) noteResult(err error) {
	if errors.Is(err, ErrClosed) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failure = err
}

// leaveReason returns the encoded failure that this rank stores for the others, or "".
func (m *rankMonitor) leaveReason() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failure == nil {
		return ""
	}
	why, _ := json.Marshal(reportOf(m.failure)) // cannot fail: it contains only strings and numbers
	return string(why)
}
