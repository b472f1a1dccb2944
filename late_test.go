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

// Rank 0 waits in a call for rank 1, which is late. After a delay, and repeatedly from then on,
// rank 0 warns about rank 1: it passes a LateWarning with the late ranks, here [1], to
// Options.OnLate, or else writes it to the log. The wait itself continues until rank 1 arrives or a
// timeout ends it.

// warnDelay is the delay before the first warning. It is short, so that tests are fast.
const warnDelay = 20 * time.Millisecond

// warningCount is the number of warnings that a test awaits, to check that they are repeated.
const warningCount = 4

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
				if r.Rank() == lateRank {
					awaitWorldWarnings(r, warnings)
				}

				r.ok(wait(r, b)) // the call of lateRank ends the wait of the other ranks
			})
		})
	}
}

// awaitWorldWarnings receives warnings until warningCount of them name this rank, and checks each
// of them. It skips warnings of ranks that were still connecting.
func awaitWorldWarnings(r *rank, warnings <-chan symmem.LateWarning) {
	for namingThisRank := 0; namingThisRank < warningCount; {
		w := <-warnings
		isConnecting := strings.HasPrefix(w.InCall, "joining ")
		if isConnecting {
			continue
		}

		if w.Group != "world" || w.InCall == "" || w.Waited < warnDelay {
			r.failf("got the warning %+v, want a call in the world that has waited %v or longer", w,
				warnDelay)
		}

		if w.Activity[w.Ranks[0]] == "" {
			r.failf("got the warning %+v, want one with the activity of rank %d", w, w.Ranks[0])
		}

		if slices.Contains(w.Ranks, r.Rank()) { // on a busy machine, it may name other ranks
			namingThisRank++
		}
	}
}

// TestLateRankIsReportedDuringJoin makes the last rank late for a Join. The others must warn about
// it repeatedly, and the Join must then succeed.
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

// awaitJoinWarnings receives warnings until one names a single rank. This warning and the following
// ones, warningCount in total, must name only this rank.
func awaitJoinWarnings(r *rank, warnings <-chan symmem.LateWarning) {
	w := <-warnings
	for len(w.Ranks) > 1 {
		w = <-warnings // on a busy machine, another rank may be late, too
	}

	for n := 1; ; n++ { // w is warning n
		if !slices.Equal(w.Ranks, []int{r.Rank()}) || w.Waited < warnDelay {
			r.failf("got the warning %+v, want only rank %d and a wait of at least %v", w, r.Rank(),
				warnDelay)
		}

		if n == warningCount {
			return
		}

		w = <-warnings
	}
}

// safeBuffer contains a log. Goroutines can write and read it at the same time.
type safeBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
	// written contains a value if there was a write since the last receive from it. Its capacity is
	// 1.
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

// TestLateWarningsAreLogged makes rank 1 late for a Check until the log contains a warning about
// it. Without Options.OnLate, ranks must write warnings to the log.
func TestLateWarningsAreLogged(t *testing.T) {
	const aboutRank1 = "ranks=[1]" // in a line of the log
	logged := &safeBuffer{written: make(chan struct{}, 1)}
	o := symmem.Options{
		WarnAfter: warnDelay, Logger: slog.New(slog.NewTextHandler(logged, nil)),
	}
	runRanks(t, 2, o, func(r *rank) {
		if r.Rank() == 1 {
			for !strings.Contains(logged.String(), aboutRank1) { // there may be warnings about rank 0
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

// sharedDeadline is for tests of timeouts. It makes the waits of all ranks time out at the same
// moment: at the first warning that the function ends selects. With a fixed deadline, ranks on a
// busy machine might time out too early.
type sharedDeadline struct {
	ends    func(w symmem.LateWarning) bool // reports whether a warning ends the waits
	once    sync.Once                       // closes expired
	expired chan struct{}                   // closed after the selected warning
}

// newSharedDeadline returns a deadline at the first warning for which ends returns true.
func newSharedDeadline(ends func(w symmem.LateWarning) bool) *sharedDeadline {
	return &sharedDeadline{ends: ends, expired: make(chan struct{})}
}

// options returns the options for ranks that use the deadline. They pass their warnings to it.
func (s *sharedDeadline) options() symmem.Options {
	return symmem.Options{WarnAfter: warnDelay, OnLate: func(w symmem.LateWarning) {
		if s.ends(w) {
			s.once.Do(func() { close(s.expired) })
		}
	}}
}

// context returns a context that ends at the deadline, for a wait of a rank.
func (s *sharedDeadline) context(r *rank) context.Context {
	return deadlineContext{r.ctx, s.expired}
}

// deadlineContext is a context that ends with context.DeadlineExceeded when expired is closed. The
// end of the embedded context does not end it.
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
