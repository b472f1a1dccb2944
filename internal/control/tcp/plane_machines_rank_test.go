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

// machineRankVariable is the environment variable that holds a machineRank as JSON.
const machineRankVariable = "SYMMEM_TCP_TEST_RANK"

// machineRank describes a rank on a simulated machine. The rank connects to the store, joins a
// group and runs rounds until the test makes it finish or a fault occurs.
type machineRank struct {
	Rank, Size, LocalRank, LocalSize int
	Store, Token                     string
	Timeout                          time.Duration // of Connect, Join and each wait
	Pause                            time.Duration // between rounds
	Waits                            bool          // for a line of input before Join
}

// machineEvent is an event that a rank reports as a line of JSON.
type machineEvent struct {
	Event string // one of the constants below
	Round int    `json:",omitempty"` // number of completed rounds
	Kind  string `json:",omitempty"` // kind of the error: see controltest.KindOf
	Ranks []int  `json:",omitempty"` // ranks that the error or the exchanged reports are about
	Text  string `json:",omitempty"` // error of this rank
}

const (
	eventStarted = "started" // the process is running
	eventJoined  = "joined"  // the rank has joined the group
	eventRounds  = "rounds"  // roundsPerEvent more rounds have completed
	eventFailed  = "failed"  // the rank got an error
	eventEnded   = "ended"   // the rank has left; this is its last event
)

func (e machineEvent) write() { _ = json.NewEncoder(os.Stdout).Encode(e) }

// runMachineRank runs a rank and exits, if a test started this process as a rank.
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

func (r *machineRank) run() machineEvent {
	ctx, cancel := context.WithTimeout(context.Background(), r.Timeout)
	defer cancel()
	store, member, err := rendezvous.Connect(ctx, rendezvous.World{
		Rank: r.Rank, Size: r.Size, LocalRank: r.LocalRank, LocalSize: r.LocalSize,
		Source: rendezvous.SourceOptions, Route: rendezvous.Route{
			Kind:     rendezvous.RouteServe,
			Endpoint: rendezvous.Endpoint{Address: r.Store, Token: rendezvous.Token(r.Token)},
		},
	})
	if err != nil {
		return r.failedToJoin(err)
	}
	defer member.Close()
	ranks := make([]int, r.Size)
	for i := range ranks {
		ranks[i] = i
	}
	if r.Waits {
		if _, err := fmt.Fscanln(os.Stdin, new(string)); err != nil {
			return r.failedToJoin(err)
		}
	}
	guarded, stop := member.Guard(ctx, ranks)
	p, err := Join(guarded, Config{
		Store: store, Timeout: r.Timeout,
		Group: driver.GroupConfig{ID: "machines", Ranks: ranks, Rank: r.Rank},
	})
	stop()
	if err != nil {
		return r.failedToJoin(err)
	}
	machineEvent{Event: eventJoined}.write()
	rounds, err := r.work(p)
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

// roundsPerEvent is the number of rounds after which a rank reports eventRounds again.
const roundsPerEvent = 2

// work runs rounds until one fails or a rank proposes to finish. This rank does so when it has
// read a line from standard input.
func (r *machineRank) work(p *Plane) (rounds int, err error) {
	var finish atomic.Bool
	go func() {
		finish.Store(bufio.NewScanner(os.Stdin).Scan())
	}()
	value, err := p.Named("round", false)
	if err != nil {
		return 0, err
	}
	for pause := time.NewTicker(max(r.Pause, 1)); ; <-pause.C {
		done, err := r.round(p, value, rounds, finish.Load())
		if done || err != nil {
			return rounds, err
		}
		if rounds++; rounds%roundsPerEvent == 0 {
			machineEvent{Event: eventRounds, Round: rounds}.write()
		}
	}
}

type roundMessage struct {
	Rank, Round int
	Finish      bool
}

// round exchanges messages and values, compares a call, and verifies the received data. It reports
// whether any rank has proposed to finish.
func (r *machineRank) round(
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
		if json.Unmarshal(text, &m) != nil || m.Rank != rank || m.Round != round {
			return false, fmt.Errorf("wrong: rank %d sent %q in round %d", rank, text, round)
		}
		done = done || m.Finish
	}
	all := make([]driver.Words, r.Size)
	if err := value.Gather(ctx, driver.Words{uint64(r.Rank), uint64(round)}, all); err != nil {
		return false, err
	}
	for rank, words := range all {
		if words != (driver.Words{uint64(rank), uint64(round)}) {
			return false, fmt.Errorf("wrong: rank %d has the value %v in round %d", rank, words, round)
		}
	}
	return done, p.Compare(p.Submit(), &driver.Call{Digest: uint64(round)})
}

// report exchanges the ranks' reports on a fault and returns this rank's last event. If any
// report contains lost ranks, the event lists the lost ranks of all reports.
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
	var lost []int
	for rank := range reports {
		one := make([][]byte, len(reports))
		one[rank] = reports[rank]
		var found *driver.RankLostError
		if errors.As(control.DecodeFailures(p.cfg.Group.Ranks, one, "work"), &found) {
			lost = append(lost, found.Ranks...)
			e.Text += "; " + found.Error()
		}
	}
	if len(lost) > 0 {
		slices.Sort(lost)
		e.Kind, e.Ranks = "lost", slices.Compact(lost)
	}
	return e
}
