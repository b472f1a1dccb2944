package tcp

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"symmem/internal/control"
	"symmem/internal/control/controltest"
)

// TestMain runs the tests, or one rank if a test started this process as a rank.
func TestMain(m *testing.M) {
	runMachineRank()               // runs a rank on a simulated machine and exits, if requested
	controltest.Main(joinAsMember) // runs a rank of a contract test and exits, if requested
	goleak.VerifyTestMain(m)
}

func joinAsMember(ctx context.Context, m controltest.Member) (control.Plane, error) {
	p, err := Join(ctx, Config{
		Store: m.Store, Group: m.Group, Timeout: m.Timeout, Late: m.Late,
	})
	if err != nil {
		return nil, err // returning p would make a non-nil interface from a nil pointer
	}

	return p, nil
}

func TestPlaneContract(t *testing.T) { controltest.Run(t, joinAsMember) }

func BenchmarkPlane(b *testing.B) { controltest.Bench(b, joinAsMember) }

// Withdraw revokes the tickets, or numbers, of collectives that another rank has not submitted. It
// asks the other rank for a status only if the answer can change the result.
func TestWithdrawAsksOnlyIfNeeded(t *testing.T) {
	i := newImpostor(t)
	p := i.joinVictim()
	ticket := p.Submit()
	const noRequest = 0
	statusWithTicket1 := anyStatus()
	i.send(kindStatus, "", noRequest, statusWithTicket1)
	const impostorRank = 1
	awaitSubmitted(p, impostorRank, ticket)
	if p.Withdraw() {
		t.Error("Withdraw = true for a ticket that all ranks have submitted, want false")
	}

	p.Abort(nil) // sends kindFail after any message of Withdraw
	for last := kind(0); last != kindFail; {
		m, err := readFrame(i.conn)
		check(t, err)
		if m.kind == kindAskStatus {
			t.Error("Withdraw has asked for a status that cannot change its result")
		}

		last = m.kind
	}
}

// awaitSubmitted waits until p knows that a rank has submitted a ticket.
func awaitSubmitted(p *Plane, rank int, ticket uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.records[rank].submitted < ticket {
		p.awaitChange(nil, hangTimeout)
	}
}

func TestWithdrawWaitsForAnswer(t *testing.T) {
	i := newImpostor(t)
	p := i.joinVictim()
	p.Submit()
	withdrawn := make(chan bool, 1)
	go func() { withdrawn <- p.Withdraw() }()
	request := i.await(kindAskStatus)
	statusWithTicket1 := anyStatus()
	i.send(kindStatus, "", request.step, statusWithTicket1)
	if <-withdrawn {
		t.Error("Withdraw = true for a ticket that all ranks have submitted, want false")
	}
}

// The least number of submitted tickets is final if a rank with this number can submit no more, or
// has answered the last request for its status.
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
		unused := rankRecord{} // of rank 0
		p := &Plane{statusRequests: lastRequest}
		p.records = []rankRecord{unused, c.rank1, c.rank2}
		const submittedByRank0 = 5
		least, isFinal := leastSubmitted(p, submittedByRank0)
		if least != c.wantLeast || isFinal != c.wantFinal {
			t.Errorf("%s: leastSubmitted = %d, %t; want %d, %t",
				name, least, isFinal, c.wantLeast, c.wantFinal)
		}
	}
}
