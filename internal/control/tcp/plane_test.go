package tcp

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"symmem/internal/control"
	"symmem/internal/control/controltest"
)

// TestMain runs this process as a rank if a test started it as one. Otherwise, it runs the tests.
func TestMain(m *testing.M) {
	runMachineRank()               // exits in a rank on a simulated machine
	controltest.Main(joinAsMember) // exits in a rank of the contract tests
	goleak.VerifyTestMain(m)
}

// joinAsMember joins a rank of a contract test to its group.
func joinAsMember(ctx context.Context, m controltest.Member) (control.Plane, error) {
	p, err := Join(ctx, Config{
		Store: m.Store, Group: m.Group, Timeout: m.Timeout, Late: m.Late,
	})
	if err != nil {
		return nil, err // not p: an interface with a nil pointer is not nil
	}

	return p, nil
}

func TestPlaneContract(t *testing.T) { controltest.Run(t, joinAsMember) }

func BenchmarkPlane(b *testing.B) { controltest.Bench(b, joinAsMember) }

// A rank submits each collective before it runs it, and gets a number, the ticket. Withdraw revokes
// the tickets that not all ranks have submitted, and returns whether there were any. A rank knows
// from a status of another rank how many tickets that rank had submitted. If it must know more, it
// asks for a new status.
//
// In the next tests, rank 0 is the code under test, the victim. Rank 1 is an impostor: the test
// sends each of its messages. anyStatus says that rank 1 has submitted ticket 1.

// TestWithdrawAsksOnlyIfNeeded calls Withdraw when the victim knows from a status that the impostor
// has submitted the same ticket. Withdraw must not ask for another status.
func TestWithdrawAsksOnlyIfNeeded(t *testing.T) {
	i := newImpostor(t)
	p := i.joinVictim()
	ticket := p.Submit()
	const noRequest = 0 // the status answers no request
	i.send(kindStatus, "", noRequest, anyStatus())
	awaitSubmitted(p, 1, ticket)
	if p.Withdraw() {
		t.Error("Withdraw = true for a ticket that all ranks have submitted, want false")
	}

	p.Abort(nil) // sends kindFail, after all messages of Withdraw
	for {
		m, err := readFrame(i.conn)
		check(t, err)
		if m.kind == kindAskStatus {
			t.Error("Withdraw has asked for a status that cannot change its result")
		}

		if m.kind == kindFail {
			break
		}
	}
}

// awaitSubmitted waits until p has received a status of a rank that has submitted the ticket.
func awaitSubmitted(p *Plane, rank int, ticket uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.records[rank].submitted < ticket {
		p.awaitChange(nil, hangTimeout)
	}
}

// TestWithdrawWaitsForAnswer calls Withdraw when the victim has no status of the impostor. Withdraw
// must ask for one and use the answer.
func TestWithdrawWaitsForAnswer(t *testing.T) {
	i := newImpostor(t)
	p := i.joinVictim()
	p.Submit()
	withdrawn := make(chan bool, 1)
	go func() { withdrawn <- p.Withdraw() }()
	request := i.await(kindAskStatus)
	i.send(kindStatus, "", request.step, anyStatus())
	if <-withdrawn {
		t.Error("Withdraw = true for a ticket that all ranks have submitted, want false")
	}
}

// Rank 0 has submitted 5 tickets, and has a status of ranks 1 and 2. leastSubmitted returns the
// smallest number of tickets that a rank has submitted, say 4 by rank 1. This number is not final
// if rank 1 may have submitted more since then. It is final if rank 1 has left, is lost, or has
// sent the status as the answer to the last request. If both ranks have submitted 4, one such rank
// suffices.
func TestLeastSubmittedIsFinal(t *testing.T) {
	const lastRequest = 1
	record := func(submitted uint64) rankRecord {
		return rankRecord{status: status{submitted: submitted}}
	}
	left4 := record(4)
	left4.hasLeft = true
	lost4 := record(4)
	lost4.isLost = true
	answered4 := record(4)
	answered4.answered = lastRequest
	for name, c := range map[string]struct {
		rank1     rankRecord
		rank2     rankRecord
		wantLeast uint64
		wantFinal bool
	}{
		"all have submitted 5": {
			rank1: record(6), rank2: record(5), wantLeast: 5, wantFinal: true,
		},
		"one may have submitted more": {
			rank1: record(4), rank2: record(5), wantLeast: 4, wantFinal: false,
		},
		"one has answered": {
			rank1: record(4), rank2: answered4, wantLeast: 4, wantFinal: true,
		},
		"one has left": {
			rank1: left4, rank2: record(4), wantLeast: 4, wantFinal: true,
		},
		"one is lost": {
			rank1: record(4), rank2: lost4, wantLeast: 4, wantFinal: true,
		},
		"one is behind another that left": {
			rank1: left4, rank2: record(3), wantLeast: 3, wantFinal: false,
		},
	} {
		rank0 := rankRecord{} // not used: leastSubmitted gets the number as an argument
		p := &Plane{statusRequests: lastRequest}
		p.records = []rankRecord{rank0, c.rank1, c.rank2}
		const submitted = 5 // by rank 0
		least, isFinal := leastSubmitted(p, submitted)
		if least != c.wantLeast || isFinal != c.wantFinal {
			t.Errorf("%s: leastSubmitted = %d, %t; want %d, %t",
				name, least, isFinal, c.wantLeast, c.wantFinal)
		}
	}
}
