package symmem_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"symmem"
)

// While a rank waits for late ranks, it repeatedly passes a LateWarning that lists them to
// Options.OnLate, or logs the warning if there is no OnLate.

const (
	warnDelay    = 20 * time.Millisecond // before the first warning
	warningCount = 4                     // proves that warnings are repeated
	manyWarnings = 1000                  // channel capacity with which OnLate never blocks
)

func TestLateRankIsReportedDuringWait(t *testing.T) {
	const lateRank = 1
	waits := map[string]func(r *rank, b symmem.Buffer) error{
		"collective": func(r *rank, b symmem.Buffer) error { return r.sum(r.World(), b) },
		"agreement":  func(r *rank, _ symmem.Buffer) error { return r.World().Check(r.ctx) },
	}
	for name, wait := range waits {
		t.Run(name, func(t *testing.T) {
			warnings := make(chan symmem.LateWarning, manyWarnings)
			o := symmem.Options{
				WarnAfter: warnDelay, OnLate: func(w symmem.LateWarning) { warnings <- w },
			}
			runRanks(t, 3, o, func(r *rank) {
				b := r.window(r.pool(), 4096)
				r.fill(b, 1)
				if r.Rank() == lateRank {
					awaitWorldWarnings(r, warnings)
				}

				r.ok(wait(r, b))
			})
		})
	}
}

// awaitWorldWarnings checks warnings until warningCount of them name this rank.
func awaitWorldWarnings(r *rank, warnings <-chan symmem.LateWarning) {
	for namingThisRank := 0; namingThisRank < warningCount; {
		w := <-warnings
		isConnecting := strings.HasPrefix(w.InCall, "joining ")
		if isConnecting { // before the call under test
			continue
		}

		if w.Group != "world" || w.InCall == "" || w.Waited < warnDelay {
			r.failf("got the warning %+v, want a call in the world that has waited %v or longer", w,
				warnDelay)
		}

		firstLate := w.Ranks[0]
		if w.Activity[firstLate] == "" {
			r.failf("got the warning %+v, want one with the activity of rank %d", w, firstLate)
		}

		if slices.Contains(w.Ranks, r.Rank()) { // on a busy machine, other ranks may be late
			namingThisRank++
		}
	}
}

func TestLateRankIsReportedDuringJoin(t *testing.T) {
	const groupID = "late"
	warnings := make(chan symmem.LateWarning, manyWarnings)
	o := symmem.Options{WarnAfter: warnDelay, OnLate: func(w symmem.LateWarning) {
		if w.Group == groupID {
			warnings <- w
		}
	}}
	ranks := min(3, availableRanks(t))
	lateRank := ranks - 1
	runRanks(t, ranks, o, func(r *rank) {
		if r.Rank() == lateRank {
			awaitJoinWarnings(r, warnings)
		}

		g, err := r.Join(r.ctx, groupID, r.World().Ranks())
		r.ok(err)
		r.ok(g.Close())
	})
}

// awaitJoinWarnings awaits warningCount warnings that name only this rank.
func awaitJoinWarnings(r *rank, warnings <-chan symmem.LateWarning) {
	w := <-warnings
	for len(w.Ranks) > 1 {
		w = <-warnings // on a busy machine, another rank may be late, too
	}

	for n := range warningCount {
		if n > 0 {
			w = <-warnings
		}

		if !slices.Equal(w.Ranks, []int{r.Rank()}) || w.Waited < warnDelay {
			r.failf("got the warning %+v, want only rank %d and a wait of at least %v", w, r.Rank(),
				warnDelay)
		}
	}
}

// safeBuffer is a bytes.Buffer for concurrent use.
type safeBuffer struct {
	mu      sync.Mutex
	text    bytes.Buffer  // guarded by mu
	written chan struct{} // signals new text
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case b.written <- struct{}{}:
	default: // already signaled
	}

	return b.text.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func TestLateWarningsAreLogged(t *testing.T) {
	const aboutRank1 = "ranks=[1]"
	logged := &safeBuffer{written: make(chan struct{}, 1)}
	o := symmem.Options{
		WarnAfter: warnDelay, Logger: slog.New(slog.NewTextHandler(logged, nil)),
	}
	runRanks(t, 2, o, func(r *rank) {
		if r.Rank() == 1 {
			for !strings.Contains(logged.String(), aboutRank1) {
				<-logged.written
			}
		}

		r.ok(r.World().Check(r.ctx))
	})
	for _, want := range []string{"level=WARN", aboutRank1, "group=world", "waiting for", "rank 1"} {
		if !strings.Contains(logged.String(), want) {
			t.Errorf("the log %q does not contain %q", logged, want)
		}
	}
}

// sharedDeadline lets the waits of all ranks time out at the first warning for which ends returns
// true. A fixed deadline could expire too early on a busy machine.
type sharedDeadline struct {
	ends    func(w symmem.LateWarning) bool
	once    sync.Once // closes expired
	expired chan struct{}
}

func newSharedDeadline(ends func(w symmem.LateWarning) bool) *sharedDeadline {
	return &sharedDeadline{ends: ends, expired: make(chan struct{})}
}

func (s *sharedDeadline) options() symmem.Options {
	return symmem.Options{WarnAfter: warnDelay, OnLate: func(w symmem.LateWarning) {
		if s.ends(w) {
			s.once.Do(func() { close(s.expired) })
		}
	}}
}

func (s *sharedDeadline) context(r *rank) context.Context {
	return deadlineContext{r.ctx, s.expired}
}

// deadlineContext ends with context.DeadlineExceeded when expired is closed, but not when the
// embedded context ends.
type deadlineContext struct {
	context.Context
	expired <-chan struct{}
}

func (c deadlineContext) Done() <-chan struct{} { return c.expired }

func (c deadlineContext) Err() error {
	select {
	case <-c.expired:
		return context.DeadlineExceeded
	default:
		return nil
	}
}
