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

// rankWatcher knows which ranks of the world have ended.
type rankWatcher interface {
	// Guard returns a context that ends soon after one of some ranks has ended, with a
	// *rendezvous.EndedError as its cause. The caller must call stop.
	Guard(ctx context.Context, ranks []int) (guarded context.Context, stop func())
	// Ended returns those of some ranks that have ended. It waits until they are enough, or the
	// context ends.
	Ended(ctx context.Context, ranks []int, enough func([]*rendezvous.EndedError) bool,
	) []*rendezvous.EndedError
	// Leave leaves the world; why is stored for the others, and empty where nothing has failed. The
	// rank that serves the store waits for the others until the context ends.
	Leave(ctx context.Context, why string) error
}

// rankMonitor finds out whether a step of this rank fails because other ranks have ended.
type rankMonitor struct {
	watcher  rankWatcher
	observer driver.EndObserver // of the world's communicator, if that observes ends
	mu       *ranked.Mutex[runtimeMu]
	failure  error // of the latest creation of a group; guarded by mu
}

const (
	// leaveTimeout is how long the rank that serves the store waits for the others at least.
	leaveTimeout = time.Second
	// endDelay is how long after a connection to a rank has broken its end may become known.
	endDelay = time.Second
)

// leave leaves the world, at the given time at the latest, or when the context ends, but for
// leaveTimeout in any case.
func (m *rankMonitor) leave(ctx context.Context, due time.Time) error {
	soonest := time.Now().Add(leaveTimeout)
	if due.Before(soonest) {
		due = soonest
	}
	waiting, cancel := context.WithDeadline(context.WithoutCancel(ctx), due)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(time.Until(soonest), cancel) })()
	return m.watcher.Leave(waiting, m.leaveReason())
}

// withRanks runs a step that needs some ranks of the world, such as the joining of a group. Soon
// after one of them has ended the step ends, with a RankLostError that names that rank.
func (m *rankMonitor) withRanks(
	ctx context.Context, doing string, ranks []int, step func(context.Context) error,
) error {
	guarded, stop := m.watcher.Guard(ctx, ranks)
	defer stop()
	err := step(guarded)
	if err == nil || isCause(err) {
		return err
	}
	return m.explainLost(ctx, doing, ranks, err)
}

// explainLost returns why a step failed that needs some ranks: a RankLostError, if one of them has
// ended and the step may have failed because of that. The end may become known a moment later.
func (m *rankMonitor) explainLost(ctx context.Context, doing string, ranks []int, err error) error {
	var lost *RankLostError
	wait, seen, broken := endDelay/2, errors.As(err, &lost), mayBeRankLoss(err)
	if seen || broken {
		wait = endDelay
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	ended := m.watcher.Ended(waiting, ranks, func(known []*rendezvous.EndedError) bool {
		switch {
		case seen:
			return covers(known, lost.Ranks)
		case broken:
			return len(known) > 0
		default:
			return len(died(known)) > 0
		}
	})
	// Ranks that have left may have done so because of those that have died.
	switch dead := m.addObserved(ranks, died(ended)); {
	case len(dead) > 0 && (seen || broken):
		return lostError(doing, dead)
	case len(dead) > 0:
		return fmt.Errorf("%w; this rank got: %w", lostError(doing, dead), err)
	case awaitsOthers(err, ended):
		return err
	case len(ended) > 0 && broken && !seen:
		return leftError(doing, ended)
	}
	return err
}

// died returns the ranks that have ended without leaving.
func died(ended []*rendezvous.EndedError) []*rendezvous.EndedError {
	return slices.DeleteFunc(slices.Clone(ended), func(e *rendezvous.EndedError) bool {
		return e.Left
	})
}

// addObserved adds to the dead those of some ranks whose ends this rank has observed. The rank that
// serves the store may have ended before it could record them.
func (m *rankMonitor) addObserved(
	ranks []int, dead []*rendezvous.EndedError,
) []*rendezvous.EndedError {
	if m.observer == nil {
		return dead
	}
	for _, rank := range m.observer.EndedRanks() {
		if slices.Contains(ranks, rank) && !covers(dead, []int{rank}) {
			how := fmt.Sprintf("the process of rank %d has ended", rank)
			dead = append(dead, &rendezvous.EndedError{Rank: rank, How: how})
		}
	}
	slices.SortFunc(dead, func(a, b *rendezvous.EndedError) int { return a.Rank - b.Rank })
	return dead
}

// isCause reports whether an error cannot be a consequence of the end of another rank.
func isCause(err error) bool {
	for _, cause := range []error{ErrInvalid, ErrUnsupported, ErrOutOfMemory, ErrClosed, ErrAborted} {
		if errors.Is(err, cause) {
			return true
		}
	}
	return errors.As(err, new(*DivergenceError)) || errors.As(err, new(*MismatchError))
}

// covers reports whether the ends of all of some ranks are known.
func covers(known []*rendezvous.EndedError, ranks []int) bool {
	for _, r := range ranks {
		if !slices.ContainsFunc(known, func(e *rendezvous.EndedError) bool { return e.Rank == r }) {
			return false
		}
	}
	return true
}

// lostError returns the error for ranks that have ended.
func lostError(doing string, ended []*rendezvous.EndedError) *RankLostError {
	var ranks []int
	var how []string
	for _, e := range ended {
		ranks, how = append(ranks, e.Rank), append(how, e.How)
	}
	return &RankLostError{
		Ranks: ranks, Doing: fmt.Sprintf("%s (%s)", doing, strings.Join(how, "; ")),
		Left: len(died(ended)) == 0,
	}
}

// mayBeRankLoss reports whether an error may be the consequence of the end of another rank, which
// may not be known yet.
func mayBeRankLoss(err error) bool {
	for _, sign := range []error{
		driver.ErrFault, rendezvous.ErrLost, io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET,
		syscall.ECONNREFUSED, syscall.EPIPE, syscall.ESRCH, handoff.ErrUnknownKey,
		context.Canceled, context.DeadlineExceeded, os.ErrDeadlineExceeded,
	} {
		if errors.Is(err, sign) {
			return true
		}
	}
	return errors.As(err, new(*rendezvous.EndedError)) || errors.As(err, new(*TimeoutError))
}

// asRankError converts errors of rendezvous about absent or lost ranks.
func asRankError(err error) error {
	var ended *rendezvous.EndedError
	if errors.As(err, &ended) {
		return lostError("meeting all ranks", []*rendezvous.EndedError{ended})
	}
	return absence(err)
}

// localWorld watches the ranks of a world inside one process, which end with the process. It closes
// the store when the last one leaves.
type localWorld struct {
	store     io.Closer
	remaining atomic.Int32
}

// Guard returns the context: ranks of one process do not end alone.
func (m *localWorld) Guard(ctx context.Context, _ []int) (context.Context, func()) {
	return ctx, func() {}
}

// Ended returns nothing.
func (m *localWorld) Ended(
	context.Context, []int, func([]*rendezvous.EndedError) bool,
) []*rendezvous.EndedError {
	return nil
}

// Leave counts a rank out.
func (m *localWorld) Leave(context.Context, string) error {
	if m.remaining.Add(-1) > 0 {
		return nil
	}
	return m.store.Close()
}

// note remembers how the latest joining of a group has ended: a rank that leaves after one
// has failed leaves because of that, and leaveReason returns that reason.
func (m *rankMonitor) note(err error) {
	if errors.Is(err, ErrClosed) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failure = err
}

// leaveReason returns the text that this rank stores for the others when it leaves: the report of
// its failure, or nothing.
func (m *rankMonitor) leaveReason() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failure == nil {
		return ""
	}
	why, _ := json.Marshal(reportOf(m.failure)) // of strings and numbers, which cannot fail
	return string(why)
}
