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

// warnDelay is the time after which ranks warn about late ranks. It is short, so that tests need
// not wait long for warnings.
const warnDelay = 20 * time.Millisecond

// warningCount is the number of warnings that a test awaits: ranks must warn more than once.
const warningCount = 4

// sharedDeadline makes the waits of all ranks time out together, after the first warning for which
// ends returns true. With a fixed deadline, ranks on a busy machine might time out too early.
type sharedDeadline struct {
	ends    func(w symmem.LateWarning) bool
	once    sync.Once
	expired chan struct{} // closed after the warning
}

func newSharedDeadline(ends func(w symmem.LateWarning) bool) *sharedDeadline {
	return &sharedDeadline{ends: ends, expired: make(chan struct{})}
}

// options returns options with which ranks pass their warnings to the deadline.
func (s *sharedDeadline) options() symmem.Options {
	return symmem.Options{WarnAfter: warnDelay, OnLate: func(w symmem.LateWarning) {
		if s.ends(w) {
			s.once.Do(func() { close(s.expired) })
		}
	}}
}

// context returns a context for a wait of a rank that ends at the shared deadline.
func (s *sharedDeadline) context(r *rank) context.Context {
	return deadlineContext{r.ctx, s.expired}
}

// deadlineContext ends with context.DeadlineExceeded when expired is closed. It does not end with
// the embedded context, which only provides the other methods.
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

// manyWarnings is the capacity of channels for warnings. It is more than a test causes, so that
// OnLate never blocks.
const manyWarnings = 1000

// TestLateRankIsReportedDuringWait makes rank 1 late for a call. The other ranks must warn about it
// repeatedly, and the call must then succeed.
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
				b := r.window(r.pool(), 4096) // all ranks register the buffer before the wait
				r.fill(b, 1)
				if r.Rank() != lateRank {
					r.ok(wait(r, b))
					return
				}

				// On a busy machine, there may also be warnings about other ranks.
				for warningsAboutThisRank := 0; warningsAboutThisRank < warningCount; {
					w := <-warnings
					if strings.HasPrefix(w.InCall, "joining ") {
						continue // the ranks were still connecting
					}

					if w.Group != "world" || w.InCall == "" || w.Waited < warnDelay {
						r.failf("got the warning %+v, want a call in the world that has waited %v or longer",
							w, warnDelay)
					}

					if w.Activity[w.Ranks[0]] == "" {
						r.failf("got the warning %+v, want one with the activity of rank %d", w, w.Ranks[0])
					}

					if slices.Contains(w.Ranks, lateRank) {
						warningsAboutThisRank++
					}
				}

				r.ok(wait(r, b)) // ends the wait of the other ranks
			})
		})
	}
}

// TestLateRankIsReportedDuringJoin makes the last rank late for a Join. The others must warn about
// it repeatedly.
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
	awaitWarnings := func(r *rank) {
		w := <-warnings
		for len(w.Ranks) > 1 {
			w = <-warnings // on a busy machine, another rank may be late, too
		}

		for n := 1; ; n++ { // w is warning n about lateRank alone
			if !slices.Equal(w.Ranks, []int{lateRank}) || w.Waited < warnDelay {
				r.failf("got the warning %+v, want only rank %d and a wait of at least %v", w, lateRank,
					warnDelay)
			}

			if n == warningCount {
				return
			}

			w = <-warnings
		}
	}
	runRanks(t, ranks, o, func(r *rank) {
		if r.Rank() == lateRank {
			awaitWarnings(r)
		}

		g, err := r.Join(r.ctx, groupID, r.World().Ranks())
		r.ok(err)
		r.ok(g.Close())
	})
}

// safeBuffer is a buffer for a log, which goroutines can write and read at the same time.
type safeBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
	// written contains a value if there was a write since the last receive. Its capacity is 1.
	written chan struct{}
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case b.written <- struct{}{}:
	default: // the channel already contains a value
	}

	return b.text.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// TestLateWarningsAreLogged makes rank 1 late for a Check, until the log says so. Without OnLate,
// warnings go to the logger.
func TestLateWarningsAreLogged(t *testing.T) {
	const lateRank = "ranks=[1]" // in a line of the log
	logged := &safeBuffer{written: make(chan struct{}, 1)}
	o := symmem.Options{
		WarnAfter: warnDelay, Logger: slog.New(slog.NewTextHandler(logged, nil)),
	}
	runRanks(t, 2, o, func(r *rank) {
		if r.Rank() == 1 {
			for !strings.Contains(logged.String(), lateRank) {
				<-logged.written // earlier warnings may be about rank 0
			}
		}

		r.ok(r.World().Check(r.ctx))
	})
	for _, want := range []string{"level=WARN", lateRank, "group=world", "waiting for", "rank 1"} {
		if !strings.Contains(logged.String(), want) {
			t.Errorf("the log %q does not contain %q", logged, want)
		}
	}
}
