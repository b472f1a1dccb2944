package tcp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/control/controltest"
	"symmem/internal/rendezvous"
)

// Tests start this test binary as a rank on a simulated machine. The process reads what to do from
// the environment variable SYMMEM_TCP_TEST_RANK, a machineRank in JSON. It writes events in JSON to
// its standard output, one a line. A rank without faults writes:
//
//	{"Event":"started"}
//	{"Event":"joined"}
//	{"Event":"rounds","Round":2}
//	{"Event":"rounds","Round":4}
//	{"Event":"ended","Round":5,"Kind":"finished"}
//
// In each round, the ranks exchange data and check the data that they receive. They continue until
// the test writes a line to the standard input of one of them, or until a fault occurs.

// machineRankVariable is the environment variable with a machineRank as JSON.
const machineRankVariable = "SYMMEM_TCP_TEST_RANK"

// machineRank describes a rank on a simulated machine.
type machineRank struct {
	Rank, Size           int           // of the job, which is one group
	LocalRank, LocalSize int           // of the machine
	Store                string        // address of the store
	Token                string        // secret of the job
	Timeout              time.Duration // of Connect, Join and each wait
	Pause                time.Duration // between rounds
	WaitsForInput        bool          // waits for a line of input before Join
}

// machineEvent is a line of JSON that a rank writes to the test.
type machineEvent struct {
	Event string // one of the constants below, such as eventStarted
	Round int    `json:",omitempty"` // completed rounds
	Kind  string `json:",omitempty"` // kind of the error, such as "lost"; "finished" without one
	Ranks []int  `json:",omitempty"` // late or lost ranks in the error or the exchanged reports
	Text  string `json:",omitempty"` // this rank's error
}

const (
	eventStarted = "started" // the process is running
	eventJoined  = "joined"  // the rank has joined the group
	eventRounds  = "rounds"  // roundsPerEvent more rounds have completed
	eventFailed  = "failed"  // a round has returned an error
	eventEnded   = "ended"   // the rank has left; this is its last event
)

// write writes the event to standard output.
func (e machineEvent) write() { _ = json.NewEncoder(os.Stdout).Encode(e) }

// runMachineRank runs a rank and exits if a test started this process as a rank. Otherwise, it
// does nothing. TestMain calls it first.
func runMachineRank() {
	text := os.Getenv(machineRankVariable)
	if text == "" {
		return
	}

	var r machineRank
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		panic(err)
	}

	machineEvent{Event: eventStarted}.write()
	r.run().write()
	os.Exit(0)
}

// run connects to the store, joins a group of all ranks and runs rounds. It returns the rank's last
// event, with the error if one of these steps failed.
func (r *machineRank) run() machineEvent {
	ctx, cancel := context.WithTimeout(context.Background(), r.Timeout)
	defer cancel()
	store, member, err := r.connect(ctx)
	if err != nil {
		return r.failedToJoin(err)
	}
	defer member.Close()
	p, err := r.join(ctx, store, member)
	if err != nil {
		return r.failedToJoin(err)
	}

	machineEvent{Event: eventJoined}.write()
	rounds, err := r.runRounds(p)
	last := machineEvent{Event: eventEnded, Round: rounds, Kind: "finished"}
	if err != nil {
		last = r.report(p, err)
		last.Round = rounds
	}

	if err := p.Close(); err != nil {
		last.Text += "; closing: " + err.Error()
	}

	return last
}

// connect connects to the store, which rank 0 serves.
func (r *machineRank) connect(
	ctx context.Context,
) (*rendezvous.Client, *rendezvous.Member, error) {
	return rendezvous.Connect(ctx, rendezvous.World{
		Rank: r.Rank, Size: r.Size, LocalRank: r.LocalRank, LocalSize: r.LocalSize,
		Source: rendezvous.SourceOptions,
		Route: rendezvous.Route{
			Kind:     rendezvous.RouteServe,
			Endpoint: rendezvous.Endpoint{Address: r.Store, Token: rendezvous.Token(r.Token)},
		},
	})
}

// join joins the group of all ranks. If WaitsForInput is set, it first waits for a line of input.
func (r *machineRank) join(
	ctx context.Context, store *rendezvous.Client, member *rendezvous.Member,
) (*Plane, error) {
	ranks := make([]int, r.Size)
	for i := range ranks {
		ranks[i] = i
	}

	if r.WaitsForInput {
		if _, err := fmt.Fscanln(os.Stdin, new(string)); err != nil {
			return nil, err
		}
	}

	guardedCtx, stopGuard := member.Guard(ctx, ranks) // ends when a rank is lost
	defer stopGuard()
	return Join(guardedCtx, Config{
		Store: store, Timeout: r.Timeout,
		Group: driver.GroupConfig{ID: "machines", Ranks: ranks, Rank: r.Rank},
	})
}

// failedToJoin returns the last event of a rank that could not connect to the store or join.
func (r *machineRank) failedToJoin(err error) machineEvent {
	e := machineEvent{Event: eventEnded, Text: err.Error()}
	e.Kind, e.Ranks = controltest.KindOf(err)
	var absent *rendezvous.AbsentError
	var ended *rendezvous.EndedError
	switch {
	case errors.As(err, &absent):
		e.Kind, e.Ranks = "late", absent.Ranks
	case errors.As(err, &ended):
		e.Kind, e.Ranks = "lost", []int{ended.Rank}
	}

	return e
}

// roundsPerEvent is the number of rounds after which a rank writes eventRounds.
const roundsPerEvent = 2

// runRounds runs rounds until a round fails or any rank proposes to finish. This rank proposes it
// after it has read a line from standard input. rounds is the number of rounds before the last one.
func (r *machineRank) runRounds(p *Plane) (rounds int, err error) {
	var shouldFinish atomic.Bool
	go func() { // ends with the process
		shouldFinish.Store(bufio.NewScanner(os.Stdin).Scan())
	}()
	const ordered = false
	value, err := p.Named("round", ordered)
	if err != nil {
		return 0, err
	}

	pause := time.NewTicker(max(r.Pause, 1)) // NewTicker panics for 0
	for {
		done, err := r.runRound(p, value, rounds, shouldFinish.Load())
		if done || err != nil {
			return rounds, err
		}

		rounds++
		if rounds%roundsPerEvent == 0 {
			machineEvent{Event: eventRounds, Round: rounds}.write()
		}

		<-pause.C
	}
}

// roundMessage is the payload of a rank in the exchange of a round.
type roundMessage struct {
	Rank, Round int
	Finish      bool // whether the rank proposes to finish
}

// runRound exchanges messages, gathers a named value and compares a call. It checks the received
// data, and returns an error that begins with "wrong" if these are not those of this round. done
// reports whether any rank has proposed to finish.
func (r *machineRank) runRound(
	p *Plane, value driver.Named, round int, finish bool,
) (done bool, err error) {
	ctx := context.Background()
	payload, err := json.Marshal(roundMessage{Rank: r.Rank, Round: round, Finish: finish})
	if err != nil {
		return false, err
	}

	messages, err := p.Exchange(ctx, driver.LaneControl, payload)
	if err != nil {
		return false, err
	}

	for rank, text := range messages {
		var m roundMessage
		err := json.Unmarshal(text, &m)
		isOfThisRound := err == nil && m.Rank == rank && m.Round == round
		if !isOfThisRound {
			return false, fmt.Errorf("wrong: rank %d sent %q in round %d", rank, text, round)
		}

		done = done || m.Finish
	}

	wordsOf := func(rank int) driver.Words { return driver.Words{uint64(rank), uint64(round)} }
	all := make([]driver.Words, r.Size)
	if err := value.Gather(ctx, wordsOf(r.Rank), all); err != nil {
		return false, err
	}

	for rank, words := range all {
		if words != wordsOf(rank) {
			return false, fmt.Errorf("wrong: rank %d has the value %v in round %d", rank, words, round)
		}
	}

	ticket := p.Submit()
	return done, p.Compare(ticket, &driver.Call{Digest: uint64(round)})
}

// report exchanges the fault reports of all ranks after a round has returned err, and returns this
// rank's last event. The event lists the ranks that any report lists as lost.
func (r *machineRank) report(p *Plane, err error) machineEvent {
	machineEvent{Event: eventFailed, Text: err.Error()}.write()
	e := machineEvent{Event: eventEnded, Text: err.Error()}
	e.Kind, e.Ranks = controltest.KindOf(err)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	reports, exchangeErr := p.Exchange(ctx, driver.LaneFault, control.EncodeFailure(err))
	if exchangeErr != nil {
		e.Text += "; exchanging reports: " + exchangeErr.Error()
	}

	var lostRanks []int
	for rank := range reports {
		// DecodeFailures returns only the first of several failures, so decode one at a time.
		oneReport := make([][]byte, len(reports))
		oneReport[rank] = reports[rank]
		err := control.DecodeFailures(p.cfg.Group.Ranks, oneReport, "work")
		var lost *driver.RankLostError
		if errors.As(err, &lost) {
			lostRanks = append(lostRanks, lost.Ranks...)
			e.Text += "; " + lost.Error()
		}
	}

	if len(lostRanks) > 0 {
		slices.Sort(lostRanks)
		e.Kind, e.Ranks = "lost", slices.Compact(lostRanks)
	}

	return e
}
