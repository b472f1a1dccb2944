package controltest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/rendezvous"
)

const configVariable = "SYMMEM_CONTROL_TEST_PROGRAM"

// rankConfig configures a rank that runs in a separate process.
type rankConfig struct {
	// Task is idleTask, fetchTask, leaveTask, leaveEarlyTask, or a key of waitFunctions. The process
	// repeats this wait until a fault occurs.
	Task       string
	Store      string // address
	Rank, Size int
	Timeout    time.Duration
}

// event is a line of JSON from a process.
type event struct {
	// Name is "running" after warmUpRounds rounds, "failed" after a fault, and "outcome" at the end.
	Name string
	// Kind and Ranks are KindOf the error of the last wait.
	Kind  string
	Ranks []int
	Text  string
	// HasReported is set for each rank whose fault report arrived.
	HasReported []bool
	// Lost holds the lost ranks from Departed after the exchange of reports.
	Lost []int
}

func (e event) write() {
	if err := json.NewEncoder(os.Stdout).Encode(e); err != nil {
		panic(err)
	}
}

// Main runs a rank and exits if a test started this process. TestMain must call it first.
func Main(join Join) {
	text := os.Getenv(configVariable)
	if text == "" {
		return
	}

	// The test holds the other end of standard input: exit when it does.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	e := event{Name: "outcome", Kind: "start"}
	var c rankConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		e.Text = err.Error()
	} else {
		e = c.run(join)
	}

	e.write()
	os.Exit(0)
}

const warmUpRounds = 10

func (c rankConfig) run(join Join) event {
	p, _, err := c.join(join) // both stay open until the process exits
	if err != nil {
		return event{Name: "outcome", Kind: "start", Text: err.Error()}
	}

	if c.Task == leaveTask || c.Task == leaveEarlyTask {
		event{Name: "running"}.write()
		return c.leave(p)
	}

	for round := 0; err == nil; round++ {
		if round == warmUpRounds {
			event{Name: "running"}.write()
		}

		err = c.round(p, round)
	}

	return c.reportFailure(p, err)
}

func (c rankConfig) join(join Join) (p control.Plane, leave func() error, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), hangTimeout)
	defer cancel()
	store, err := rendezvous.Dial(ctx, rendezvous.Endpoint{Address: c.Store})
	if err != nil {
		return nil, nil, err
	}

	ranks := make([]int, c.Size)
	for i := range ranks {
		ranks[i] = i
	}

	p, err = join(ctx, Member{
		Store: store, Timeout: c.Timeout,
		Group: driver.GroupConfig{ID: "processes", Ranks: ranks, Rank: c.Rank},
	})
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}

	return p, func() error { return errors.Join(p.Close(), store.Close()) }, nil
}

// round performs one wait. The wait for work never completes, so round performs comparisons until
// all ranks are running.
func (c rankConfig) round(p control.Plane, round int) error {
	switch {
	case c.Task == "a wait for work" && round < warmUpRounds:
		return waitFunctions["a comparison"](p)
	case c.Task == idleTask:
		return c.runIdle(p, round)
	case c.Task == fetchTask:
		return c.stopInFetch(p, round)
	default:
		return waitFunctions[c.Task](p)
	}
}

// idleTask is a Task. The process polls for a peer's failure instead of waiting for other ranks.
const idleTask = "idle"

func (c rankConfig) runIdle(p control.Plane, round int) error {
	if round < warmUpRounds {
		return waitFunctions["a comparison"](p)
	}

	waitForPeerFailure(p)
	err := p.Diagnose(newEndlessWait(p.Submit()), time.Now())
	if err == nil {
		err = errors.New("PeerFailed is true, but Diagnose returns nil")
	}

	return p.Fail(err)
}

// fetchTask is a Task. Rank 2 stops itself while it waits for memory of rank 1. The others then
// wait for it in an exchange, which rank 0 enters once the test has set stoppedKey.
const fetchTask, stoppedKey = "fetching", "rank 2 has been stopped"

func (c rankConfig) stopInFetch(p control.Plane, round int) error {
	if round == warmUpRounds {
		if err := c.coordinateStop(p); err != nil {
			return p.Fail(err)
		}
	}

	return waitFunctions["an exchange"](p)
}

// coordinateStop stops rank 2 once the others have its earlier messages. Rank 0 waits until the
// test has seen rank 2 stop.
func (c rankConfig) coordinateStop(p control.Plane) error {
	ctx, cancel := context.WithTimeout(context.Background(), hangTimeout)
	defer cancel()
	store, err := rendezvous.Dial(ctx, rendezvous.Endpoint{Address: c.Store})
	if err != nil {
		return err
	}
	defer store.Close()
	const readyKey = "ready "
	if c.Rank != 2 {
		err := store.Set(ctx, readyKey+strconv.Itoa(c.Rank), nil)
		if c.Rank == 0 && err == nil {
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

// leaveTask is a Task. Rank 1 submits a ticket and leaves. Rank 0 waits up to longWork for this
// ticket.
const leaveTask = "leaving"

func (c rankConfig) leave(p control.Plane) event {
	if c.Rank == 1 {
		if c.Task == leaveTask {
			p.Submit()
		}

		return c.close(p, "left")
	}

	ticket := p.Submit()
	if c.Task == leaveEarlyTask {
		return c.reportFailure(p, c.diagnoseLeft(p, ticket))
	}

	ctx, cancel := context.WithTimeout(context.Background(), longWork)
	defer cancel()
	if err := p.Await(ctx, newEndlessWait(ticket)); !errors.Is(err, context.DeadlineExceeded) {
		return c.reportFailure(p, err)
	}

	return c.close(p, "canceled")
}

// leaveEarlyTask is a Task. Rank 1 leaves without submitting the ticket for which rank 0 calls
// Diagnose until longWork has passed.
const leaveEarlyTask = "leaving early"

// diagnoseLeft accepts only DeadlockErrors from Diagnose.
func (c rankConfig) diagnoseLeft(p control.Plane, ticket uint64) error {
	var err error
	for begin := time.Now(); time.Since(begin) < longWork; {
		err = p.Diagnose(newEndlessWait(ticket), time.Now())
		if err != nil && !errors.As(err, new(*driver.DeadlockError)) {
			return p.Fail(err)
		}
	}

	if err == nil {
		err = errors.New("no DeadlockError although a rank has left")
	}

	return p.Fail(err)
}

func (rankConfig) close(p control.Plane, kind string) event {
	e := event{Name: "outcome", Kind: kind}
	if err := p.Close(); err != nil {
		e.Kind, e.Text = "close", err.Error()
	}

	return e
}

// longWork exceeds the time to detect that a process has exited.
const longWork = time.Second

func (c rankConfig) reportFailure(p control.Plane, err error) event {
	e := event{Name: "outcome", Text: err.Error()}
	e.Kind, e.Ranks = KindOf(err)
	event{Name: "failed", Text: e.Text}.write()
	ctx, cancel := context.WithTimeout(context.Background(), reportTimeout)
	defer cancel()
	reports, err := p.Exchange(ctx, driver.LaneFault, []byte("here"))
	if err != nil {
		e.Text += "; " + err.Error()
	}

	e.Lost, _ = p.Departed()
	for _, r := range reports {
		e.HasReported = append(e.HasReported, string(r) == "here")
	}

	if closeEvent := c.close(p, e.Kind); closeEvent.Kind == "close" {
		return closeEvent
	}

	return e
}

// reportTimeout bounds the exchange of fault reports, which a stopped rank misses.
const reportTimeout = 2 * time.Second
