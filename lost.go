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
	"syscall"
	"time"

	"symmem/driver"
	"symmem/internal/handoff"
	"symmem/internal/ranked"
	"symmem/internal/rendezvous"
)

// company is what a rank knows of the others outside of groups: which of them have ended.
type company interface {
	// Guard returns a context that ends soon after one of some ranks has ended, with a
	// *rendezvous.EndedError as its cause. The caller must call stop.
	Guard(ctx context.Context, ranks []int) (guarded context.Context, stop func())
	// Ended returns those of some ranks that have ended. It waits until they are enough, or the
	// context ends.
	Ended(ctx context.Context, ranks []int, enough func([]*rendezvous.EndedError) bool,
	) []*rendezvous.EndedError
	// Leave leaves the world; why is what the others are told, empty where nothing has failed. The
	// rank that serves the store waits for the others until the context ends.
	Leave(ctx context.Context, why string) error
}

const (
	// farewell is how long the rank that serves the store waits for the others at least.
	farewell = time.Second
	// newsWait is how long after a connection to a rank has broken its end may be told of.
	newsWait = time.Second
)

// leave leaves the world, at the given time at the latest, but for a short grace.
func (rt *Runtime) leave(due time.Time) error {
	if soonest := time.Now().Add(farewell); due.Before(soonest) {
		due = soonest
	}
	ctx, cancel := context.WithDeadline(context.Background(), due)
	defer cancel()
	return rt.company.Leave(ctx, rt.parting())
}

// together does what needs some ranks of the world, such as the joining of a group. It ends soon
// after one of them has ended, with a RankLostError that names it.
func (rt *Runtime) together(
	ctx context.Context, doing string, ranks []int, step func(context.Context) error,
) error {
	guarded, stop := rt.company.Guard(ctx, ranks)
	defer stop()
	err := step(guarded)
	if err == nil || isCause(err) {
		return err
	}
	return rt.explainLost(ctx, doing, ranks, err)
}

// explainLost is why a step failed that needs some ranks: a rank that has died, if the step may
// have failed for that. The word of it may come a moment later.
func (rt *Runtime) explainLost(ctx context.Context, doing string, ranks []int, err error) error {
	var lost *RankLostError
	wait, seen, broken := newsWait/2, errors.As(err, &lost), brokenOff(err)
	if seen || broken {
		wait = newsWait
	}
	news, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	ended := rt.company.Ended(news, ranks, func(known []*rendezvous.EndedError) bool {
		switch {
		case seen:
			return covers(known, lost.Ranks)
		case broken:
			return len(known) > 0
		default:
			return len(died(known)) > 0
		}
	})
	// Who has left may have done so because of those that have died.
	switch dead := rt.witnessed(ranks, died(ended)); {
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

// died are those that have ended without leaving.
func died(ended []*rendezvous.EndedError) []*rendezvous.EndedError {
	return slices.DeleteFunc(slices.Clone(ended), func(e *rendezvous.EndedError) bool {
		return e.Left
	})
}

// witnessed adds to the dead those of some ranks whose ends this rank has seen by itself. The rank
// that serves the store may have ended before it could tell of them.
func (rt *Runtime) witnessed(
	ranks []int, dead []*rendezvous.EndedError,
) []*rendezvous.EndedError {
	if rt.world == nil {
		return dead
	}
	witness, ok := rt.world.comm.(driver.Witness)
	if !ok {
		return dead
	}
	for _, rank := range witness.Dead() {
		if slices.Contains(ranks, rank) && !covers(dead, []int{rank}) {
			how := fmt.Sprintf("the process of rank %d has ended", rank)
			dead = append(dead, &rendezvous.EndedError{Rank: rank, How: how})
		}
	}
	slices.SortFunc(dead, func(a, b *rendezvous.EndedError) int { return a.Rank - b.Rank })
	return dead
}

// isCause reports whether an error is no consequence of the end of another rank.
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

// lostError names ranks that have ended.
func lostError(doing string, ended []*rendezvous.EndedError) *RankLostError {
	var ranks []int
	var how []string
	for _, e := range ended {
		ranks, how = append(ranks, e.Rank), append(how, e.How)
	}
	return &RankLostError{Ranks: ranks, Doing: fmt.Sprintf("%s (%s)", doing, strings.Join(how, "; "))}
}

// brokenOff reports whether an error may be the consequence of the end of another rank, of which
// the news may be on its way.
func brokenOff(err error) bool {
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

// notMet makes errors of this package of what rendezvous says about ranks that did not come.
func notMet(err error) error {
	var ended *rendezvous.EndedError
	if errors.As(err, &ended) {
		return lostError("meeting all ranks", []*rendezvous.EndedError{ended})
	}
	return absence(err)
}

// members are the ranks of a local world, which end with the process. Its store is closed when the
// last one leaves.
type members struct {
	mu    ranked.Mutex[membersMu]
	store io.Closer
	left  int // guarded by mu
}

// Guard returns the context: ranks of one process do not end alone.
func (m *members) Guard(ctx context.Context, _ []int) (context.Context, func()) {
	return ctx, func() {}
}

// Ended returns nothing.
func (m *members) Ended(
	context.Context, []int, func([]*rendezvous.EndedError) bool,
) []*rendezvous.EndedError {
	return nil
}

// Leave counts a rank out.
func (m *members) Leave(context.Context, string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.left--; m.left > 0 {
		return nil
	}
	return m.store.Close()
}

// noteFailure remembers how the latest making of a group has ended, for the others: a rank that
// leaves after one has failed leaves because of that.
func (rt *Runtime) noteFailure(err error) {
	if errors.Is(err, ErrClosed) {
		return
	}
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.failure = err
}

// parting is what this rank tells the others when it leaves: its report of the failure that it
// leaves for, or nothing.
func (rt *Runtime) parting() string {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if rt.failure == nil {
		return ""
	}
	why, _ := json.Marshal(reportOf(rt.failure)) // of strings and numbers, which cannot fail
	return string(why)
}
