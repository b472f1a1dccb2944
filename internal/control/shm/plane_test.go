package shm

import (
	"context"
	"errors"
	"strings"
	"testing"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/control/controltest"
)

// member is a plane whose Close also closes its Machine.
type member struct {
	control.Plane
	machine *Machine
}

func (m *member) Close() error {
	planeErr := m.Plane.Close()
	machineErr := m.machine.Close()
	return errors.Join(planeErr, machineErr)
}

// NoteFetch implements control.FetchNoter.
func (m *member) NoteFetch(rank int) (end func()) {
	return m.Plane.(control.FetchNoter).NoteFetch(rank)
}

func joinAsMember(ctx context.Context, m controltest.Member) (control.Plane, error) {
	machine, err := Open(ctx, driver.Config{
		Rank: m.Rank(), Size: len(m.Group.Ranks), Store: m.Store, Timeout: m.Timeout,
		Late: m.Late,
	})
	if err != nil {
		return nil, err
	}

	p, err := machine.Join(ctx, m.Group)
	if err != nil {
		return nil, errors.Join(err, machine.Close())
	}

	return &member{Plane: p, machine: machine}, nil
}

func TestPlaneContract(t *testing.T) { controltest.Run(t, joinAsMember) }

func (pair *rankPair) checkSameMachine(want bool) {
	pair.t.Helper()
	got, err := pair.machines[0].SameMachine(pair.ctx, []int{0, 1})
	check(pair.t, err)
	if got != want {
		pair.t.Errorf("SameMachine = %v, want %v", got, want)
	}
}

func TestSameMachine(t *testing.T) {
	pair := newRankPair(t)
	pair.checkSameMachine(true)
	addressAndMachineID, err := pair.store.Get(pair.ctx, rankKey(1))
	check(t, err)
	err = pair.store.Set(pair.ctx, rankKey(1), append(addressAndMachineID, "elsewhere"...))
	check(t, err)
	pair.checkSameMachine(false)
	canceledCtx, cancel := context.WithCancel(pair.ctx)
	cancel()
	const nonexistentRank = 2
	_, err = pair.machines[0].SameMachine(canceledCtx, []int{nonexistentRank})
	if err == nil || !strings.Contains(err.Error(), "rank 2") {
		t.Errorf("SameMachine with a canceled context: got %v, want an error about rank 2", err)
	}
}

// Withdraw revokes the tickets, or numbers, of collectives that another rank has not submitted.
func TestWithdrawKeepsTicketsSubmittedByAllRanks(t *testing.T) {
	pair := newRankPair(t)
	pair.join()
	for _, p := range pair.planes {
		p.Submit()
	}

	if pair.planes[0].Withdraw() {
		t.Error("Withdraw = true although both ranks have submitted all tickets, want false")
	}

	pair.planes[0].Submit()
	if !pair.planes[0].Withdraw() {
		t.Error("Withdraw = false for a ticket that only one rank has submitted, want true")
	}
}

func BenchmarkPlane(b *testing.B) { controltest.Bench(b, joinAsMember) }
