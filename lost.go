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

// rankWatcher detects which ranks of the world have ended, either because their process has ended
// or because they have closed symmem.
type rankWatcher interface {
	// Guard returns a context that is canceled soon after one of the given ranks has ended, with a
	// *rendezvous.EndedError as its cause. The caller must call stop.
	Guard(ctx context.Context, ranks []int) (guarded context.Context, stop func())
	// Ended returns those of the given ranks that have ended. It first waits until enough returns
	// true for these ranks, or until the context ends.
	Ended(ctx context.Context, ranks []int, enough func([]*rendezvous.EndedError) bool,
	) []*rendezvous.EndedError
	// Leave leaves the world and stores why for the other ranks: the reason, or "" if nothing has
	// failed. On the rank that serves the store, Leave waits until the other ranks have left or the
	// context ends.
	Leave(ctx context.Context, why string) error
}

// rankMonitor determines whether a step of this rank fails because other ranks have ended.
type rankMonitor struct {
	watcher  rankWatcher
	observer driver.EndObserver // the world's communicator, or nil if it cannot detect ended ranks
	mu       *ranked.Mutex[runtimeMu]
	failure  error // result of the latest attempt to create a group; guarded by mu
}

const (
	// leaveTimeout is the minimum time that the rank that serves the store waits for the others.
	leaveTimeout = time.Second
	// endDelay is how long after a broken connection it may take to detect that the other rank has
	// ended.
	endDelay = time.Second
)

// leave leaves the world. It waits for other ranks until due or until the context ends, but at
// least for leaveTimeout.
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

// withRanks runs a step that needs the given ranks of the world, such as joining a group. If one of
// these ranks ends, withRanks soon returns a RankLostError that names that rank.
func (m *rankMonitor) withRanks(
	ctx context.Context, operation string, ranks []int, step func(context.Context) error,
) error {
	guarded, stop := m.watcher.Guard(ctx, ranks)
	defer stop()
	err := step(guarded)
	if err == nil || excludesRankLoss(err) {
		return err
	}
	return m.explainLost(ctx, operation, ranks, err)
}

// explainLost explains the error of a step that needs the given ranks. If one of these ranks has
// ended and that may be the cause, explainLost returns a RankLostError. In all other cases, it
// returns err. It waits a moment first, because the end of a rank may be detected late.
func (m *rankMonitor) explainLost(
	ctx context.Context, operation string, ranks []int, err error,
) error {
	var lost *RankLostError
	wait, seen, broken := endDelay/2, errors.As(err, &lost), mayBeRankLoss(err)
	if seen || broken {
		wait = endDelay
	}
	waitCtx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	ended := m.watcher.Ended(waitCtx, ranks, func(known []*rendezvous.EndedError) bool {
		switch {
		case seen:
			return allEnded(known, lost.Ranks)
		case broken:
			return len(known) > 0
		default:
			return len(deadRanks(known)) > 0
		}
	})
	// Some ranks may have left because others died, so a dead rank is the better explanation.
	switch dead := m.addObserved(ranks, deadRanks(ended)); {
	case len(dead) > 0 && (seen || broken):
		return lostError(operation, dead)
	case len(dead) > 0:
		return fmt.Errorf("%w; this rank got: %w", lostError(operation, dead), err)
	case awaitsOthers(err, ended):
		return err
	case len(ended) > 0 && broken && !seen:
		return leftError(operation, ended)
	}
	return err
}

// deadRanks returns the ranks that have ended without leaving.
func deadRanks(ended []*rendezvous.EndedError) []*rendezvous.EndedError {
	return slices.DeleteFunc(slices.Clone(ended), func(e *rendezvous.EndedError) bool {
		return e.Left
	})
}

// addObserved adds to dead those of the given ranks that have ended according to this rank's own
// observation. They may be missing in dead if the rank that serves the store has ended, too.
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

// excludesRankLoss reports whether an error cannot have been caused by the end of another rank.
func excludesRankLoss(err error) bool {
	for _, cause := range []error{ErrInvalid, ErrUnsupported, ErrOutOfMemory, ErrClosed, ErrAborted} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return errors.As(err, new(*DivergenceError)) || errors.As(err, new(*MismatchError))
}

// allEnded reports whether all of the given ranks are known to have ended.
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

// mayBeRankLoss reports whether err may have been caused by the end of another rank, even if that
// has not been detected yet.
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

// localWorld implements rankWatcher for a world whose ranks share one process and therefore end
// together. It closes the store when the last rank leaves.
type localWorld struct {
	store     io.Closer
	remaining atomic.Int32
}

// Guard returns ctx, because no rank of the process ends before the others.
func (m *localWorld) Guard(ctx context.Context, _ []int) (context.Context, func()) {
	return ctx, func() {}
}

// Ended returns nil.
func (m *localWorld) Ended(
	context.Context, []int, func([]*rendezvous.EndedError) bool,
) []*rendezvous.EndedError {
	return nil
}

// Leave records that one more rank has left.
func (m *localWorld) Leave(context.Context, string) error {
	if m.remaining.Add(-1) > 0 {
		return nil
	}
	return m.store.Close()
}

// note records the result of the latest attempt to join a group, so that this rank can store the
// reason if it leaves because of a failure.
func (m *rankMonitor) note(err error) {
	if errors.Is(err, ErrClosed) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failure = err
}

// leaveReason returns the encoded failure that this rank stores for the others when it leaves, or
// "" if nothing has failed.
func (m *rankMonitor) leaveReason() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failure == nil {
		return ""
	}
	why, _ := json.Marshal(reportOf(m.failure)) // cannot fail: it contains only strings and numbers
	return string(why)
}
