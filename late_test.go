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

// While a rank waits for late ranks, it repeatedly calls Options.OnLate with a LateWarning that
// lists these ranks. Without OnLate, it logs the warnings.

const (
	warnDelay    = 20 * time.Millisecond // before the first warning
	warningCount = 4                     // more than one, because warnings must repeat
	manyWarnings = 1000                  // capacity of a channel, so that OnLate never blocks
)

func TestLateRankIsReportedDuringWait(t *testing.T) {
	const lateRank = 1
	waits := map[string]func(r *rank, b symmem.Buffer) error{
		"collective": func(r *rank, b symmem.Buffer) error { return r.sum(r.World(), b) },
		"agreement":  func(r *rank, _ symmem.Buffer) error { return r.World().Check(r.ctx) },
	}
	for name, wait := range waits {
		t.Run(name, func(t *testing.T) {
			warnings := make(chan symmem.LateWarning, manyWarnings) // of all ranks
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

// awaitWorldWarnings checks warnings until warningCount of them list this rank. On a busy machine,
// other ranks may be late, too.
func awaitWorldWarnings(r *rank, warnings <-chan symmem.LateWarning) {
	listingThisRank := 0
	for listingThisRank < warningCount {
		w := <-warnings
		opensWorld := strings.HasPrefix(w.InCall, "joining ")
		if opensWorld {
			continue // the call under test comes later
		}

		checkWorldWarning(r, w)
		if slices.Contains(w.Ranks, r.Rank()) {
			listingThisRank++
		}
	}
}

func checkWorldWarning(r *rank, w symmem.LateWarning) {
	if w.Group != "world" || w.InCall == "" || w.Waited < warnDelay {
		r.failf("got the warning %+v, want a call in the world that has waited %v or longer", w,
			warnDelay)
	}

	firstLate := w.Ranks[0]
	if w.Activity[firstLate] == "" {
		r.failf("got the warning %+v, want one with the activity of rank %d", w, firstLate)
	}
}

func TestLateRankIsReportedDuringJoin(t *testing.T) {
	const groupID = "late"
	warnings := make(chan symmem.LateWarning, manyWarnings) // of all ranks
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

// awaitJoinWarnings awaits warningCount warnings that list only this rank.
func awaitJoinWarnings(r *rank, warnings <-chan symmem.LateWarning) {
	checked := 0
	for checked < warningCount {
		w := <-warnings
		if checked == 0 && len(w.Ranks) > 1 {
			continue // on a busy machine, another rank may be late at first
		}

		checked++
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

func newSafeBuffer() *safeBuffer { return &safeBuffer{written: make(chan struct{}, 1)} }

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case b.written <- struct{}{}:
	default: // an earlier signal has not been received
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
	logged := newSafeBuffer()
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

// sharedDeadline expires on all ranks when mustExpire first returns true. A time limit could expire
// too early on a busy machine.
type sharedDeadline struct {
	mustExpire func(w symmem.LateWarning) bool
	once       sync.Once // closes expired
	expired    chan struct{}
}

func newSharedDeadline(mustExpire func(w symmem.LateWarning) bool) *sharedDeadline {
	return &sharedDeadline{mustExpire: mustExpire, expired: make(chan struct{})}
}

func (s *sharedDeadline) options() symmem.Options {
	return symmem.Options{WarnAfter: warnDelay, OnLate: func(w symmem.LateWarning) {
		if s.mustExpire(w) {
			s.once.Do(func() { close(s.expired) })
		}
	}}
}

func (s *sharedDeadline) context(r *rank) context.Context {
	return deadlineContext{r.ctx, s.expired}
}

// deadlineContext ends only when expired is closed, and then returns context.DeadlineExceeded.
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
