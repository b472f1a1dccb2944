package tcp

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"symmem/internal/control"
	"symmem/internal/control/controltest"
)

func TestMain(m *testing.M) {
	runMachineRank()
	controltest.Main(joinAsMember)
	goleak.VerifyTestMain(m)
}

func joinAsMember(ctx context.Context, m controltest.Member) (control.Plane, error) {
	p, err := Join(ctx, Config{
		Store: m.Store, Group: m.Group, Timeout: m.Timeout, Late: m.Late,
	})
	if err != nil {
		return nil, err
	}
	return p, nil
}

func TestPlaneContract(t *testing.T) { controltest.Run(t, joinAsMember) }

func BenchmarkPlane(b *testing.B) { controltest.Bench(b, joinAsMember) }

// TestWithdrawAsksOnlyIfNeeded withdraws a ticket that the impostor, the other rank, has
// submitted. The victim knows this from a status, so Withdraw must not ask for another status.
func TestWithdrawAsksOnlyIfNeeded(t *testing.T) {
	i := newImpostor(t)
	p := i.joinVictim()
	ticket := p.Submit()
	i.send(kindStatus, "", 0, anyStatus())
	p.mu.Lock()
	for p.records[1].submitted < ticket {
		p.awaitChange(nil, hangTimeout)
	}
	p.mu.Unlock()
	if p.Withdraw() {
		t.Error("Withdraw = true for a ticket that all ranks have submitted, want false")
	}
	p.Abort(nil)
	for {
		m, err := readFrame(i.conn)
		check(t, err)
		if m.kind == kindAskStatus {
			t.Error("Withdraw has asked for a status that cannot change its result")
		}
		if m.kind == kindFail {
			break // sent by Abort, after all messages of Withdraw
		}
	}
}

// TestWithdrawWaitsForAnswer withdraws a ticket that the impostor submits only in its answer.
func TestWithdrawWaitsForAnswer(t *testing.T) {
	i := newImpostor(t)
	p := i.joinVictim()
	p.Submit()
	withdrawn := make(chan bool, 1)
	go func() { withdrawn <- p.Withdraw() }()
	i.send(kindStatus, "", i.await(kindAskStatus).step, anyStatus())
	if <-withdrawn {
		t.Error("Withdraw = true for a ticket that all ranks have submitted, want false")
	}
}

func TestLeastSubmittedIsFinal(t *testing.T) {
	record := func(submitted uint64) rankRecord {
		return rankRecord{status: status{submitted: submitted}}
	}
	left, lost, answered := record(4), record(4), record(4)
	left.hasLeft = true
	lost.isLost = true
	answered.answered = 1
	for name, c := range map[string]struct {
		first, second rankRecord // of ranks 1 and 2
		least         uint64
		isFinal       bool
	}{
		"all have submitted 5":            {record(6), record(5), 5, true},
		"one may have submitted more":     {record(4), record(5), 4, false},
		"one has answered":                {record(4), answered, 4, true},
		"one has left":                    {left, record(4), 4, true},
		"one is lost":                     {record(4), lost, 4, true},
		"one is behind another that left": {left, record(3), 3, false},
	} {
		p := &Plane{statusRequests: 1}
		p.records = []rankRecord{{}, c.first, c.second}
		const submitted = 5 // by this rank, rank 0
		least, isFinal := leastSubmitted(p, submitted)
		if least != c.least || isFinal != c.isFinal {
			t.Errorf("%s: leastSubmitted = %d, %t; want %d, %t",
				name, least, isFinal, c.least, c.isFinal)
		}
	}
}
