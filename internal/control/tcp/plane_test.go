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

// A ticket is the number of a collective that a rank has submitted. Withdraw revokes the tickets of
// a rank, except those that all other ranks have submitted, too.
//
// In the tests below, rank 0 is the code under test, the victim. Rank 1 is an impostor, by which a
// test controls each message. anyStatus says that rank 1 has submitted ticket 1.

// TestWithdrawAsksOnlyIfNeeded withdraws a ticket that the impostor has submitted. The victim
// knows this from a status, so Withdraw must not ask for another status.
func TestWithdrawAsksOnlyIfNeeded(t *testing.T) {
	i := newImpostor(t)
	p := i.joinVictim()
	ticket := p.Submit()
	const noRequest = 0 // the status answers no request
	i.send(kindStatus, "", noRequest, anyStatus())
	// Wait until the victim has received the status.
	p.mu.Lock()
	for p.records[1].submitted < ticket {
		p.awaitChange(nil, hangTimeout)
	}

	p.mu.Unlock()
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

// TestWithdrawWaitsForAnswer withdraws a ticket of which the impostor reports only in its answer
// that it has submitted it.
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

// Rank 0 has submitted 5 tickets. It knows how many ranks 1 and 2 had submitted when they sent
// their status. The smallest number is final unless the rank may have submitted more since then: it
// cannot if it has left, is lost, or has answered the last request for its status.
func TestLeastSubmittedIsFinal(t *testing.T) {
	record := func(submitted uint64) rankRecord {
		return rankRecord{status: status{submitted: submitted}}
	}
	const lastRequest = 1
	left4, lost4, answered4 := record(4), record(4), record(4)
	left4.hasLeft = true
	lost4.isLost = true
	answered4.answered = lastRequest
	for name, c := range map[string]struct {
		rank1, rank2 rankRecord
		wantLeast    uint64
		wantFinal    bool
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
		p := &Plane{statusRequests: lastRequest}
		p.records = []rankRecord{{}, c.rank1, c.rank2}
		const submitted = 5 // by this rank, rank 0
		least, isFinal := leastSubmitted(p, submitted)
		if least != c.wantLeast || isFinal != c.wantFinal {
			t.Errorf("%s: leastSubmitted = %d, %t; want %d, %t",
				name, least, isFinal, c.wantLeast, c.wantFinal)
		}
	}
}
