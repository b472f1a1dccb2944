package controltest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/ranktest"
	"symmem/internal/rendezvous"
)

const (
	// hangTimeout expires only if a test hangs.
	hangTimeout = 60 * time.Second
	// shortTimeout is the timeout of waits that must time out. It is long enough that ranks on a
	// busy machine are late only if a test delays them.
	shortTimeout = time.Second
)

// Most tests create a group whose ranks are all in this process. For example, newGroup(t, join, 2,
// hangTimeout) returns a group of two ranks. A test acts for rank 0 by calling methods of
// planes[0], which connects rank 0 to rank 1. Ranks that must act at the same time do so in
// runOnEach.
//
// The ranks run no collectives. They only submit them: a rank that is about to launch its next
// collective calls Submit, which announces this to the other ranks. Submit returns the number of
// the collective, its ticket. unfinishedWait stands for a wait for the work of the collective.

// localGroup is a group whose ranks are all in this process.
type localGroup struct {
	ctx    context.Context // ends after hangTimeout
	planes []control.Plane // by group rank
}

// newGroup returns a group of n ranks whose waits are bounded by timeout.
func newGroup(t testing.TB, join Join, n int, timeout time.Duration) *localGroup {
	t.Helper()
	return newGroupOf(t, join, n, Member{Timeout: timeout})
}

// newWarningGroup returns a group of n ranks that warn of late ranks.
func newWarningGroup(t testing.TB, join Join, n int, late driver.Late) *localGroup {
	t.Helper()
	return newGroupOf(t, join, n, Member{Timeout: hangTimeout, Late: late})
}

// newGroupOf returns a group of n ranks, which have the Timeout and Late of m. The planes are
// closed when the test ends.
func newGroupOf(t testing.TB, join Join, n int, m Member) *localGroup {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hangTimeout)
	store := rendezvous.NewLocal()
	g := &localGroup{ctx: ctx, planes: make([]control.Plane, n)}
	t.Cleanup(func() {
		defer cancel()
		g.mustRunOnEach(t, func(_ int, p control.Plane) error {
			if p == nil { // the rank has failed to join
				return nil
			}

			return p.Close()
		})
		must(t, store.Close())
	})
	g.mustRunOnEach(t, func(i int, _ control.Plane) (err error) {
		member := m
		member.Store = store
		member.Group = driver.GroupConfig{ID: "planes", Ranks: worldRanks(n), Rank: i}
		g.planes[i], err = join(ctx, member)
		return err
	})
	return g
}

// worldRanks returns the world ranks (numbers in the whole job) of a group of n ranks, by group
// rank. For example, group ranks 0 and 1 have the world ranks 1 and 0. The numbers differ so that
// tests detect code that confuses them.
func worldRanks(n int) []int {
	ranks := make([]int, n)
	for i := range ranks {
		ranks[i] = (i + 1) % n
	}

	return ranks
}

// runOnEach calls f for all ranks at the same time and returns the results by group rank.
func (g *localGroup) runOnEach(f func(i int, p control.Plane) error) []error {
	return ranktest.CollectErrors(len(g.planes), func(i int) error { return f(i, g.planes[i]) })
}

// mustRunOnEach is like runOnEach, but ends the test if a rank returns an error.
func (g *localGroup) mustRunOnEach(t testing.TB, f func(i int, p control.Plane) error) {
	t.Helper()
	must(t, errors.Join(g.runOnEach(f)...))
}

// unfinishedWait returns a Wait for work that never completes. ticket is the number of the last
// collective on which the work depends.
func unfinishedWait(ticket uint64) control.Wait {
	return control.Wait{
		Ticket:    ticket,
		Operation: driver.AllGather,
		CallText:  func() string { return fmt.Sprintf("work %d", ticket) },
		Done:      func() bool { return false },
	}
}

// must ends the test if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// checkError checks that err matches target. name says in the test's output which call has returned
// err.
func checkError(t *testing.T, name string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: got %v, want %v", name, err, target)
	}
}

// checkOpen returns an error if a plane has failed.
func checkOpen(p control.Plane) error {
	select {
	case <-p.Failed():
		return fmt.Errorf("the plane has failed: %w", p.Cause())
	default:
		return p.Cause() // must be nil
	}
}

// barrier is the call that all ranks compare in waitFunctions.
var barrier = driver.Call{Operation: driver.Barrier, Digest: 1}

// waitFunctions holds functions in which a rank waits for all others, by a name for test output.
// The wait ends without an error when the others call the same function, except that the wait for
// work never does. Only the plane's timeout bounds the waits.
var waitFunctions = map[string]func(p control.Plane) error{
	"a comparison": func(p control.Plane) error {
		return p.Compare(p.Submit(), &barrier)
	},
	"a wait for work": func(p control.Plane) error {
		return p.Await(context.Background(), unfinishedWait(p.Submit()))
	},
	"an exchange": func(p control.Plane) error {
		_, err := p.Exchange(context.Background(), driver.LaneControl, []byte("here"))
		return err
	},
	"a value": func(p control.Plane) error {
		_, err := gather(context.Background(), p, "here", 3)
		return err
	},
}
