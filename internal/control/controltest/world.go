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
	hangTimeout  = 60 * time.Second // expires only if a test hangs
	shortTimeout = time.Second      // for waits that time out; everything else takes less
)

// localGroup is a group whose ranks are all in this process. A test acts as a rank by calling the
// methods of the rank's plane, which connects the rank to the others.
//
// The ranks announce collectives with Submit, but never launch them. Submit returns the number of
// the collective, called the ticket.
type localGroup struct {
	ctx    context.Context // ends after hangTimeout
	planes []control.Plane // by group rank
}

func newGroup(t testing.TB, join Join, n int, timeout time.Duration) *localGroup {
	t.Helper()
	return newGroupOf(t, join, n, Member{Timeout: timeout})
}

func newWarningGroup(t testing.TB, join Join, n int, late driver.Late) *localGroup {
	t.Helper()
	return newGroupOf(t, join, n, Member{Timeout: hangTimeout, Late: late})
}

// newGroupOf returns a group of n ranks that join with the Timeout and Late of template. It closes
// their planes when the test ends.
func newGroupOf(t testing.TB, join Join, n int, template Member) *localGroup {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hangTimeout)
	store := rendezvous.NewLocal()
	g := &localGroup{ctx: ctx, planes: make([]control.Plane, n)}
	t.Cleanup(func() {
		defer cancel()
		g.mustRunOnEach(t, func(_ int, p control.Plane) error {
			hasFailedToJoin := p == nil
			if hasFailedToJoin {
				return nil
			}

			return p.Close()
		})
		must(t, store.Close())
	})
	g.mustRunOnEach(t, func(i int, _ control.Plane) (err error) {
		member := template
		member.Store = store
		member.Group = driver.GroupConfig{ID: "planes", Ranks: worldRanks(n), Rank: i}
		g.planes[i], err = join(ctx, member)
		return err
	})
	return g
}

// worldRanks returns the world rank, the number in the whole job, of each rank of a group. World
// ranks differ from group ranks to expose code that confuses the two.
func worldRanks(n int) []int {
	ranks := make([]int, n)
	for i := range ranks {
		ranks[i] = (i + 1) % n
	}

	return ranks
}

// runOnEach calls f concurrently for all ranks and returns the results by group rank.
func (g *localGroup) runOnEach(f func(i int, p control.Plane) error) []error {
	return ranktest.CollectErrors(len(g.planes), func(i int) error { return f(i, g.planes[i]) })
}

func (g *localGroup) mustRunOnEach(t testing.TB, f func(i int, p control.Plane) error) {
	t.Helper()
	must(t, errors.Join(g.runOnEach(f)...))
}

// unfinishedWait returns a Wait for the work of collective number ticket. The work never completes.
func unfinishedWait(ticket uint64) control.Wait {
	return control.Wait{
		Ticket:    ticket,
		Operation: driver.AllGather,
		CallText:  func() string { return fmt.Sprintf("work %d", ticket) },
		Done:      func() bool { return false },
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func checkError(t *testing.T, callName string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: got %v, want %v", callName, err, target)
	}
}

func checkOpen(p control.Plane) error {
	select {
	case <-p.Failed():
		return fmt.Errorf("the plane has failed: %w", p.Cause())
	default:
		return p.Cause() // nil, unless the plane is inconsistent
	}
}

// barrier is a call that all ranks compare.
var barrier = driver.Call{Operation: driver.Barrier, Digest: 1}

// waitFunctions holds functions in which a rank waits until all others call the same function, or
// until the plane's timeout. The wait for work ends only after a failure.
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
		const firstWord = 3 // arbitrary
		_, err := gather(context.Background(), p, "here", firstWord)
		return err
	},
}
