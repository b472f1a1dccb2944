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

// warnSoon has ranks that wait warn of others long before a second is over.
const warnSoon = 20 * time.Millisecond

// patience ends the waits of all ranks at once, after a warning that satisfies enough. A test that
// waits for a missing rank cannot set a fixed deadline: on a busy machine, others miss it, too.
type patience struct {
	enough func(w symmem.LateWarning) bool
	once   sync.Once
	over   chan struct{}
}

func newPatience(enough func(w symmem.LateWarning) bool) *patience {
	return &patience{enough: enough, over: make(chan struct{})}
}

// options returns options under which ranks warn patience.
func (p *patience) options() symmem.Options {
	return symmem.Options{WarnAfter: warnSoon, OnLate: func(w symmem.LateWarning) {
		if p.enough(w) {
			p.once.Do(func() { close(p.over) })
		}
	}}
}

// context returns a context whose deadline passes when patience is over.
func (p *patience) context(r *rank) context.Context { return impatient{r.ctx, p.over} }

type impatient struct {
	context.Context
	over <-chan struct{}
}

func (c impatient) Done() <-chan struct{} { return c.over }

func (c impatient) Err() error {
	select {
	case <-c.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func TestLateRankIsReportedDuringWait(t *testing.T) {
	waits := map[string]func(r *rank, b symmem.Buffer) error{
		"in a collective": func(r *rank, b symmem.Buffer) error { return r.sum(r.World(), b) },
		"in an agreement": func(r *rank, _ symmem.Buffer) error { return r.World().Check(r.ctx) },
	}
	for name, wait := range waits {
		t.Run(name, func(t *testing.T) {
			warnings := make(chan symmem.LateWarning, 1000)
			o := symmem.Options{
				WarnAfter: warnSoon, OnLate: func(w symmem.LateWarning) { warnings <- w },
			}
			runRanks(t, 3, o, func(r *rank) {
				b := r.window(r.pool(), 4096)
				r.fill(b, 1)
				if r.Rank() != 1 {
					r.ok(wait(r, b))
					return
				}
				// Two warnings of each of the others, or several of one. A rank that was slow to
				// come here may have been warned of as well.
				for seen := 0; seen < 4; {
					w := <-warnings
					if strings.HasPrefix(w.Doing, "meeting ") {
						continue // on a busy machine, before a rank does anything
					}
					if w.Group != "world" || w.Doing == "" || w.Waited < warnSoon ||
						w.Activity[w.Ranks[0]] == "" {
						r.failf("the warning is %+v", w)
					}
					if slices.Contains(w.Ranks, 1) {
						seen++
					}
				}
				r.ok(wait(r, b))
			})
		})
	}
}

// TestLateRankIsReportedDuringJoin, and nobody else is.
func TestLateRankIsReportedDuringJoin(t *testing.T) {
	warnings := make(chan symmem.LateWarning, 1000)
	o := symmem.Options{WarnAfter: warnSoon, OnLate: func(w symmem.LateWarning) {
		if w.Group == "late" {
			warnings <- w
		}
	}}
	ranks := min(3, localRanks(t))
	runRanks(t, ranks, o, func(r *rank) {
		late := r.Rank() == ranks-1
		for n := 0; late && n < 4; n++ {
			w := <-warnings
			for n == 0 && len(w.Ranks) > 1 {
				w = <-warnings // on a busy machine another one may have been slow to come, too
			}
			if !slices.Equal(w.Ranks, []int{ranks - 1}) || w.Waited < warnSoon {
				r.failf("the warning is %+v", w)
			}
		}
		g, err := r.Join(r.ctx, "late", r.World().Ranks())
		r.ok(err)
		r.ok(g.Close())
	})
}

// safeBuffer is a buffer that several goroutines write to.
type safeBuffer struct {
	mu      sync.Mutex
	text    bytes.Buffer  // guarded by mu
	written chan struct{} // has room for one
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case b.written <- struct{}{}:
	default:
	}
	return b.text.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func TestLateWarningsAreLogged(t *testing.T) {
	logged := &safeBuffer{written: make(chan struct{}, 1)}
	o := symmem.Options{
		WarnAfter: warnSoon, Logger: slog.New(slog.NewTextHandler(logged, nil)),
	}
	runRanks(t, 2, o, func(r *rank) {
		for r.Rank() == 1 && !strings.Contains(logged.String(), "ranks=[1]") {
			<-logged.written // on a busy machine this rank may have waited for the other one, too
		}
		r.ok(r.World().Check(r.ctx))
	})
	for _, want := range []string{"level=WARN", "ranks=[1]", "group=world", "waiting for", "rank 1"} {
		if !strings.Contains(logged.String(), want) {
			t.Errorf("%q is not in %s", want, logged)
		}
	}
}
