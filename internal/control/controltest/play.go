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

// scriptVariable is set for a process that a test has started to play a rank, and holds its part.
const scriptVariable = "SYMMEM_CONTROL_TEST_SCRIPT"

// script is the part of one rank.
type script struct {
	Scene, Store string
	Rank, Size   int
	Timeout      time.Duration
}

// notice is a line that a rank writes for its test.
type notice struct {
	// Event is "running" once all ranks have played for a while, "trouble" once the scene has
	// ended, and "outcome" at the end.
	Event string
	// Kind is how the scene ended; Ranks are those that the error names.
	Kind  string
	Ranks []int
	Text  string
	// Present tells by rank who came to the fault lane afterwards.
	Present []bool
}

func (n notice) write() {
	if err := json.NewEncoder(os.Stdout).Encode(n); err != nil {
		panic(err)
	}
}

// Main is called at the begin of TestMain. In a process that a test has started to play a rank it
// plays it and ends the process, so that no test ever runs there; elsewhere it does nothing.
func Main(join Join) {
	text := os.Getenv(scriptVariable)
	if text == "" {
		return
	}
	// The test holds the other end of standard input: when it is gone, so is this process.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	n := notice{Event: "outcome", Kind: "start"}
	var s script
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		n.Text = err.Error()
	} else {
		n = s.play(join)
	}
	n.write()
	os.Exit(0)
}

// roundsToRun is how many rounds a rank takes part in before it says that it is running.
const roundsToRun = 10

// play joins the others and plays round after round until a fault ends it.
func (s script) play(join Join) notice {
	p, _, err := s.join(join) // the process ends with what it has open
	if err != nil {
		return notice{Event: "outcome", Kind: "start", Text: err.Error()}
	}
	if s.Scene == leaving || s.Scene == leavingEarly {
		notice{Event: "running"}.write()
		return s.leave(p)
	}
	for round := 0; err == nil; round++ {
		if round == roundsToRun {
			notice{Event: "running"}.write()
		}
		err = s.round(p, round)
	}
	return s.explain(p, err)
}

// join joins with a deadline that no test waits for. leave gives everything back.
func (s script) join(join Join) (p control.Plane, leave func() error, err error) {
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
		Group: driver.GroupConfig{ID: "cast", Ranks: ranks, Rank: s.Rank},
	})
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	return p, func() error { return errors.Join(p.Close(), store.Close()) }, nil
}

// round plays one round. Work is only waited for once everybody is running: it never ends.
func (s script) round(p control.Plane, round int) error {
	switch {
	case s.Scene == "a wait for work" && round < roundsToRun:
		return waits["a comparison"](p)
	case s.Scene == idling:
		return s.idle(p, round)
	default:
		return waits[s.Scene](p)
	}
}

// idling is the scene in which ranks are in no wait, and ask before each launch whether all are
// there.
const idling = "idling"

func (s script) idle(p control.Plane, round int) error {
	if round < roundsToRun {
		return waits["a comparison"](p)
	}
	awaitPeerFailed(p)
	err := p.Trouble(never(p.Submit()), time.Now())
	if err == nil {
		err = errors.New("the plane reports PeerFailed, and has no trouble")
	}
	return p.Fail(err)
}

// leaving is the scene in which rank 1 submits work and leaves, and rank 0 waits for work of that
// ticket, which takes longer than anybody needs to notice the end of a process.
const leaving = "leaving"

func (s script) leave(p control.Plane) notice {
	if s.Rank == 1 {
		if s.Scene == leaving {
			p.Submit()
		}
		return s.farewell(p, "left")
	}
	ticket := p.Submit()
	if s.Scene == leavingEarly {
		return s.explain(p, s.missed(p, ticket))
	}
	ctx, cancel := context.WithTimeout(context.Background(), longWork)
	defer cancel()
	if err := p.Await(ctx, never(ticket)); !errors.Is(err, context.DeadlineExceeded) {
		return s.explain(p, err)
	}
	return s.farewell(p, "cancelled")
}

// leavingEarly is the scene in which rank 1 leaves without the ticket of the work that rank 0 waits
// for, which looks for trouble until the end of rank 1's process is known for long.
const leavingEarly = "leaving early"

// missed asks about work until something other than a StrayError is the answer, or the end of the
// process that has left must be known.
func (s script) missed(p control.Plane, ticket uint64) error {
	var err error
	for begin := time.Now(); time.Since(begin) < longWork; {
		err = p.Trouble(never(ticket), time.Now())
		if err != nil && !errors.As(err, new(*driver.StrayError)) {
			return p.Fail(err)
		}
	}
	if err == nil {
		err = errors.New("the rank that has left is not missed")
	}
	return p.Fail(err)
}

// farewell leaves the group.
func (script) farewell(p control.Plane, kind string) notice {
	n := notice{Event: "outcome", Kind: kind}
	if err := p.Close(); err != nil {
		n.Kind, n.Text = "close", err.Error()
	}
	return n
}

// longWork is how long the work of rank 0 takes.
const longWork = time.Second

// explain reports an error, meets the others on the fault lane, and leaves.
func (s script) explain(p control.Plane, err error) notice {
	n := notice{Event: "outcome", Kind: "other", Text: err.Error()}
	var lost *driver.RankLostError
	var late *driver.TimeoutError
	var stray *driver.StrayError
	switch {
	case errors.As(err, &stray):
		n.Kind, n.Ranks = "stray", slices.Sorted(maps.Keys(stray.Elsewhere))
	case errors.As(err, &lost):
		n.Kind, n.Ranks = "lost", lost.Ranks
	case errors.As(err, &late):
		n.Kind, n.Ranks = "late", late.Missing
	case errors.Is(err, driver.ErrFault):
		n.Kind = "fault"
	}
	notice{Event: "trouble", Text: n.Text}.write()
	ctx, cancel := context.WithTimeout(context.Background(), meeting)
	defer cancel()
	reports, err := p.Exchange(ctx, driver.LaneFault, []byte("here"))
	if err != nil {
		n.Text += "; " + err.Error()
	}
	for _, r := range reports {
		n.Present = append(n.Present, string(r) == "here")
	}
	if bye := s.farewell(p, n.Kind); bye.Kind == "close" {
		return bye
	}
	return n
}

// meeting bounds the wait on the fault lane for a rank that is stopped.
const meeting = 2 * time.Second
