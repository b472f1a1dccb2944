package controltest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/rendezvous"
)

const programEnvVariable = "SYMMEM_CONTROL_TEST_PROGRAM"

// program describes a test process, which repeats a wait until a fault occurs.
type program struct {
	WaitName, Store string
	Rank, Size      int
	Timeout         time.Duration
}

// output is a line of JSON from a rank.
type output struct {
	// Event is "running" after roundsToRun rounds, "failed" after a fault, and "outcome" at the
	// end.
	Event string
	// Kind and Ranks are KindOf the error of the last wait.
	Kind  string
	Ranks []int
	Text  string
	// HasReported is set for each rank whose fault report arrived.
	HasReported []bool
	// Lost holds the lost ranks from Departed after the exchange of reports.
	Lost []int
}

func (o output) write() {
	if err := json.NewEncoder(os.Stdout).Encode(o); err != nil {
		panic(err)
	}
}

// Main runs a rank and exits if a test started this process. TestMain must call it first.
func Main(join Join) {
	text := os.Getenv(programEnvVariable)
	if text == "" {
		return
	}

	// The test holds the other end of standard input: exit when it does.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	o := output{Event: "outcome", Kind: "start"}
	var prog program
	if err := json.Unmarshal([]byte(text), &prog); err != nil {
		o.Text = err.Error()
	} else {
		o = prog.run(join)
	}

	o.write()
	os.Exit(0)
}

const roundsToRun = 10

func (prog program) run(join Join) output {
	p, _, err := prog.join(join) // both stay open until the process exits
	if err != nil {
		return output{Event: "outcome", Kind: "start", Text: err.Error()}
	}

	if prog.WaitName == leaveProgram || prog.WaitName == leaveEarlyProgram {
		output{Event: "running"}.write()
		return prog.leave(p)
	}

	for round := 0; err == nil; round++ {
		if round == roundsToRun {
			output{Event: "running"}.write()
		}

		err = prog.round(p, round)
	}

	return prog.reportFailure(p, err)
}

func (prog program) join(join Join) (p control.Plane, leave func() error, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), hangTimeout)
	defer cancel()
	store, err := rendezvous.Dial(ctx, rendezvous.Endpoint{Address: prog.Store})
	if err != nil {
		return nil, nil, err
	}

	ranks := make([]int, prog.Size)
	for i := range ranks {
		ranks[i] = i
	}

	p, err = join(ctx, Member{
		Store: store, Timeout: prog.Timeout,
		Group: driver.GroupConfig{ID: "processes", Ranks: ranks, Rank: prog.Rank},
	})
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}

	return p, func() error { return errors.Join(p.Close(), store.Close()) }, nil
}

// round performs one wait. The wait for work never completes, so round performs comparisons until
// all ranks are running.
func (prog program) round(p control.Plane, round int) error {
	switch {
	case prog.WaitName == "a wait for work" && round < roundsToRun:
		return waitFunctions["a comparison"](p)
	case prog.WaitName == idleProgram:
		return prog.runIdle(p, round)
	case prog.WaitName == fetchProgram:
		return prog.stopInFetch(p, round)
	default:
		return waitFunctions[prog.WaitName](p)
	}
}

// idleProgram is a WaitName. The process polls for a peer's failure instead of waiting for other
// ranks.
const idleProgram = "idle"

func (prog program) runIdle(p control.Plane, round int) error {
	if round < roundsToRun {
		return waitFunctions["a comparison"](p)
	}

	waitForPeerFailure(p)
	err := p.Diagnose(unfinishedWait(p.Submit()), time.Now())
	if err == nil {
		err = errors.New("PeerFailed is true, but Diagnose returns nil")
	}

	return p.Fail(err)
}

// fetchProgram is a WaitName. Rank 2 stops itself while it waits for memory of rank 1. The other
// ranks then wait for it in an exchange, which rank 0 enters once the test has set stoppedKey.
const fetchProgram, stoppedKey = "fetching", "rank 2 has been stopped"

func (prog program) stopInFetch(p control.Plane, round int) error {
	if round == roundsToRun {
		if err := prog.coordinateStop(p); err != nil {
			return p.Fail(err)
		}
	}

	return waitFunctions["an exchange"](p)
}

// coordinateStop stops rank 2 once the others have its earlier messages. Rank 0 waits until the
// test has seen rank 2 stop.
func (prog program) coordinateStop(p control.Plane) error {
	ctx, cancel := context.WithTimeout(context.Background(), hangTimeout)
	defer cancel()
	store, err := rendezvous.Dial(ctx, rendezvous.Endpoint{Address: prog.Store})
	if err != nil {
		return err
	}
	defer store.Close()
	const readyKey = "ready "
	if prog.Rank != 2 {
		err := store.Set(ctx, readyKey+strconv.Itoa(prog.Rank), nil)
		if prog.Rank == 0 && err == nil {
			err = store.Wait(ctx, stoppedKey)
		}

		return err
	}

	if err := store.Wait(ctx, readyKey+"0", readyKey+"1"); err != nil {
		return err
	}

	if noter, ok := p.(control.FetchNoter); ok {
		defer noter.NoteFetch(1)()
	}

	if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
		return err
	}

	<-p.Failed() // Kill may return before the process stops
	return nil
}

// leaveProgram is a WaitName. Rank 1 submits a ticket and leaves. Rank 0 waits up to longWork for
// this ticket.
const leaveProgram = "leaving"

func (prog program) leave(p control.Plane) output {
	if prog.Rank == 1 {
		if prog.WaitName == leaveProgram {
			p.Submit()
		}

		return prog.close(p, "left")
	}

	ticket := p.Submit()
	if prog.WaitName == leaveEarlyProgram {
		return prog.reportFailure(p, prog.diagnoseLeft(p, ticket))
	}

	ctx, cancel := context.WithTimeout(context.Background(), longWork)
	defer cancel()
	if err := p.Await(ctx, unfinishedWait(ticket)); !errors.Is(err, context.DeadlineExceeded) {
		return prog.reportFailure(p, err)
	}

	return prog.close(p, "cancelled")
}

// leaveEarlyProgram is a WaitName. Rank 1 leaves without submitting the ticket for which rank 0
// calls Diagnose until longWork has passed.
const leaveEarlyProgram = "leaving early"

// diagnoseLeft accepts only DeadlockErrors from Diagnose.
func (prog program) diagnoseLeft(p control.Plane, ticket uint64) error {
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
	o := output{Event: "outcome", Kind: kind}
	if err := p.Close(); err != nil {
		o.Kind, o.Text = "close", err.Error()
	}

	return o
}

// longWork exceeds the time to detect that a process has exited.
const longWork = time.Second

func (prog program) reportFailure(p control.Plane, err error) output {
	o := output{Event: "outcome", Text: err.Error()}
	o.Kind, o.Ranks = KindOf(err)
	output{Event: "failed", Text: o.Text}.write()
	ctx, cancel := context.WithTimeout(context.Background(), reportTimeout)
	defer cancel()
	reports, err := p.Exchange(ctx, driver.LaneFault, []byte("here"))
	if err != nil {
		o.Text += "; " + err.Error()
	}

	o.Lost, _ = p.Departed()
	for _, r := range reports {
		o.HasReported = append(o.HasReported, string(r) == "here")
	}

	if closeOutput := prog.close(p, o.Kind); closeOutput.Kind == "close" {
		return closeOutput
	}

	return o
}

// KindOf returns the kind of a fault as a word, and the ranks that the error is about.
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

// reportTimeout bounds the exchange of fault reports, which a stopped rank misses.
const reportTimeout = 2 * time.Second
