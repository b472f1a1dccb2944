package controltest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"time"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/rendezvous"
)

const programVariable = "SYMMEM_CONTROL_TEST_PROGRAM"

// program describes one test process: its rank, and the wait that the process repeats until a
// fault occurs.
type program struct {
	WaitName, Store string
	Rank, Size      int
	Timeout         time.Duration
}

// output is an event that a rank reports as a line of JSON.
type output struct {
	// Event is "running" after roundsToRun rounds, "failed" after a fault, and "outcome" at the
	// end.
	Event string
	// Kind and Ranks are the results of KindOf for the error of the last wait.
	Kind  string
	Ranks []int
	Text  string
	// Present shows, by rank, whether a report arrived on the fault lane.
	Present []bool
	// Lost holds the lost ranks that Departed returns after the exchange of reports.
	Lost []int
}

func (n output) write() {
	if err := json.NewEncoder(os.Stdout).Encode(n); err != nil {
		panic(err)
	}
}

// Main runs a rank and exits if a test started this process as a rank. Otherwise it does
// nothing. TestMain must call it first.
func Main(join Join) {
	text := os.Getenv(programVariable)
	if text == "" {
		return
	}
	// The test holds the other end of standard input, so this process exits when the test does.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	n := output{Event: "outcome", Kind: "start"}
	var s program
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		n.Text = err.Error()
	} else {
		n = s.run(join)
	}
	n.write()
	os.Exit(0)
}

// roundsToRun is the number of rounds after which a rank reports that it is running.
const roundsToRun = 10

// run joins the group and repeats the wait until a fault occurs.
func (s program) run(join Join) output {
	p, _, err := s.join(join) // the plane and the store stay open until the process exits
	if err != nil {
		return output{Event: "outcome", Kind: "start", Text: err.Error()}
	}
	if s.WaitName == leaveProgram || s.WaitName == leaveEarlyProgram {
		output{Event: "running"}.write()
		return s.leave(p)
	}
	for round := 0; err == nil; round++ {
		if round == roundsToRun {
			output{Event: "running"}.write()
		}
		err = s.round(p, round)
	}
	return s.reportFailure(p, err)
}

// join joins the group. The returned function closes the plane and the store.
func (s program) join(join Join) (p control.Plane, leave func() error, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	store, err := rendezvous.Dial(ctx, rendezvous.Endpoint{Address: s.Store})
	if err != nil {
		return nil, nil, err
	}
	ranks := make([]int, s.Size)
	for i := range ranks {
		ranks[i] = i
	}
	p, err = join(ctx, Member{
		Store: store, Timeout: s.Timeout,
		Group: driver.GroupConfig{ID: "processes", Ranks: ranks, Rank: s.Rank},
	})
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	return p, func() error { return errors.Join(p.Close(), store.Close()) }, nil
}

// round performs one wait. If the wait is for work that never completes, round performs a
// comparison instead until all ranks are running.
func (s program) round(p control.Plane, round int) error {
	switch {
	case s.WaitName == "a wait for work" && round < roundsToRun:
		return waits["a comparison"](p)
	case s.WaitName == idleProgram:
		return s.runIdle(p, round)
	default:
		return waits[s.WaitName](p)
	}
}

// idleProgram is the value of WaitName for which a process polls for a peer's failure instead of
// waiting for other ranks.
const idleProgram = "idle"

func (s program) runIdle(p control.Plane, round int) error {
	if round < roundsToRun {
		return waits["a comparison"](p)
	}
	awaitPeerFailed(p)
	err := p.Diagnose(unfinishedWait(p.Submit()), time.Now())
	if err == nil {
		err = errors.New("PeerFailed is true, but Diagnose returns nil")
	}
	return p.Fail(err)
}

// leaveProgram is the value of WaitName for which rank 1 submits a ticket and leaves. Rank 0 waits
// up to longWork for work with that ticket.
const leaveProgram = "leaving"

func (s program) leave(p control.Plane) output {
	if s.Rank == 1 {
		if s.WaitName == leaveProgram {
			p.Submit()
		}
		return s.close(p, "left")
	}
	ticket := p.Submit()
	if s.WaitName == leaveEarlyProgram {
		return s.reportFailure(p, s.diagnoseLeft(p, ticket))
	}
	ctx, cancel := context.WithTimeout(context.Background(), longWork)
	defer cancel()
	if err := p.Await(ctx, unfinishedWait(ticket)); !errors.Is(err, context.DeadlineExceeded) {
		return s.reportFailure(p, err)
	}
	return s.close(p, "cancelled")
}

// leaveEarlyProgram is the value of WaitName for which rank 1 leaves without submitting the ticket
// that rank 0 waits for. Rank 0 calls Diagnose repeatedly until longWork has passed.
const leaveEarlyProgram = "leaving early"

// diagnoseLeft calls Diagnose repeatedly, until longWork has passed or Diagnose returns an error
// other than a DeadlockError.
func (s program) diagnoseLeft(p control.Plane, ticket uint64) error {
	var err error
	for begin := time.Now(); time.Since(begin) < longWork; {
		err = p.Diagnose(unfinishedWait(ticket), time.Now())
		if err != nil && !errors.As(err, new(*driver.DeadlockError)) {
			return p.Fail(err)
		}
	}
	if err == nil {
		err = errors.New("no DeadlockError although a rank has left")
	}
	return p.Fail(err)
}

func (program) close(p control.Plane, kind string) output {
	n := output{Event: "outcome", Kind: kind}
	if err := p.Close(); err != nil {
		n.Kind, n.Text = "close", err.Error()
	}
	return n
}

// longWork is longer than it takes to detect that a process has exited.
const longWork = time.Second

func (s program) reportFailure(p control.Plane, err error) output {
	n := output{Event: "outcome", Text: err.Error()}
	n.Kind, n.Ranks = KindOf(err)
	output{Event: "failed", Text: n.Text}.write()
	ctx, cancel := context.WithTimeout(context.Background(), reportTimeout)
	defer cancel()
	reports, err := p.Exchange(ctx, driver.LaneFault, []byte("here"))
	if err != nil {
		n.Text += "; " + err.Error()
	}
	n.Lost, _ = p.Departed()
	for _, r := range reports {
		n.Present = append(n.Present, string(r) == "here")
	}
	if closed := s.close(p, n.Kind); closed.Kind == "close" {
		return closed
	}
	return n
}

// KindOf returns the kind of a fault in one word, and the ranks that the error is about.
func KindOf(err error) (kind string, ranks []int) {
	var lost *driver.RankLostError
	var late *driver.TimeoutError
	var deadlock *driver.DeadlockError
	switch {
	case errors.As(err, &deadlock):
		return "deadlock", slices.Sorted(maps.Keys(deadlock.Activity))
	case errors.As(err, &lost):
		return "lost", lost.Ranks
	case errors.As(err, &late):
		return "late", late.Missing
	case errors.Is(err, driver.ErrFault):
		return "fault", nil
	}
	return "other", nil
}

// reportTimeout bounds the exchange of reports on the fault lane, in which a stopped rank does
// not take part.
const reportTimeout = 2 * time.Second
