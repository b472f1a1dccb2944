// Package controltest tests that implementations of control.Plane satisfy its contract.
//
// Run tests groups in one process and groups with a process per rank. These processes run the test
// binary again. A package that calls Run must therefore call Main at the start of TestMain.
package controltest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/ranktest"
	"symmem/internal/rendezvous"
)

// Member describes how a rank joins a group.
type Member struct {
	// Store is shared by the group's ranks.
	Store driver.Store
	Group driver.GroupConfig
	// Timeout bounds waits for other ranks.
	Timeout time.Duration
	Late    driver.Late // warns of late ranks
}

// Rank returns the member's world rank.
func (m Member) Rank() int { return m.Group.Ranks[m.Group.Rank] }

// Join joins a group. Plane.Close must release everything that Join opened.
type Join func(ctx context.Context, m Member) (control.Plane, error)

// Run tests the whole contract.
func Run(t *testing.T, join Join) {
	t.Helper()
	for _, s := range []section{
		{"exchange", exchangeRequirements},
		{"values", valueRequirements},
		{"compare", compareRequirements},
		{"await", awaitRequirements},
		{"missing", missingRequirements},
		{"fault", faultRequirements},
		{"closing", closingRequirements},
		{"lost", lostRequirements},
		{"verdict", verdictRequirements},
	} {
		t.Run(s.name, func(t *testing.T) {
			for _, r := range s.tests {
				t.Run(r.sentence, func(t *testing.T) { r.test(t, join) })
			}
		})
	}
}

type section struct {
	name  string
	tests []requirement
}

// requirement is a sentence of the contract and its test.
type requirement struct {
	sentence string
	test     func(t *testing.T, join Join)
}

const (
	hangTimeout  = 60 * time.Second // for tests that must not time out
	shortTimeout = time.Second      // for tests of timeouts
)

const (
	groupName = "planes"
	groupSize = 3
)

// localGroup is a group whose ranks are all in this process. A test acts as a rank by calling the
// methods of the rank's plane. It submits collectives, but runs none on a GPU.
type localGroup struct {
	ctx    context.Context // ends after hangTimeout
	planes []control.Plane // by group rank
}

func newGroup(t testing.TB, join Join, n int, timeout time.Duration) *localGroup {
	t.Helper()
	return newGroupLike(t, join, n, Member{Timeout: timeout})
}

// newGroupLike returns a group of n ranks that join with the Timeout and Late of template. It
// closes their planes when the test ends.
func newGroupLike(t testing.TB, join Join, n int, template Member) *localGroup {
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
	worldRanks := make([]int, n)
	for i := range worldRanks {
		worldRanks[i] = g.worldRank(i)
	}

	g.mustRunOnEach(t, func(i int, _ control.Plane) (err error) {
		member := template
		member.Store = store
		member.Group = driver.GroupConfig{ID: groupName, Ranks: worldRanks, Rank: i}
		g.planes[i], err = join(ctx, member)
		return err
	})
	return g
}

// worldRank returns the world rank of group rank i. World ranks differ from group ranks to expose
// code that confuses the two.
func (g *localGroup) worldRank(i int) int { return (i + 1) % len(g.planes) }

// runOnEach calls f concurrently for all ranks and returns the results by group rank.
func (g *localGroup) runOnEach(f func(i int, p control.Plane) error) []error {
	return ranktest.CollectErrors(len(g.planes), func(i int) error { return f(i, g.planes[i]) })
}

func (g *localGroup) mustRunOnEach(t testing.TB, f func(i int, p control.Plane) error) {
	t.Helper()
	must(t, errors.Join(g.runOnEach(f)...))
}

// abortPeer aborts the group on rank 1, and returns when rank 0 has noticed.
func (g *localGroup) abortPeer() {
	g.planes[1].Abort(nil) // without a cause
	waitForPeerFailure(g.planes[0])
}

func waitForPeerFailure(p control.Plane) {
	for !p.PeerFailed() {
		runtime.Gosched()
	}
}

// noTicket is the ticket of work that needs no other rank.
const noTicket = 0

// newWait returns a Wait for the work of a collective, which completes when isDone returns true.
func newWait(ticket uint64, isDone func() bool) control.Wait {
	return control.Wait{
		Ticket:    ticket,
		Operation: driver.AllGather,
		CallText:  func() string { return fmt.Sprintf("work %d", ticket) },
		Done:      isDone,
	}
}

func newEndlessWait(ticket uint64) control.Wait {
	return newWait(ticket, func() bool { return false })
}

var barrierCall = driver.Call{Operation: driver.Barrier, Digest: 1}

// waitFunctions wait for the other ranks to call the same function. The wait for work ends only
// with an error.
var waitFunctions = map[string]func(p control.Plane) error{
	"a comparison": func(p control.Plane) error {
		return p.Compare(p.Submit(), &barrierCall)
	},
	"a wait for work": func(p control.Plane) error {
		return p.Await(context.Background(), newEndlessWait(p.Submit()))
	},
	"an exchange": func(p control.Plane) error {
		_, err := p.Exchange(context.Background(), driver.LaneControl, []byte("here"))
		return err
	},
	"a value": func(p control.Plane) error {
		_, err := gather(context.Background(), p, "loss", testWords(0, 0))
		return err
	},
}
