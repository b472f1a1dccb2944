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

// member is a plane that owns its Machine.
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

func (d *rankPair) checkSameMachine(want bool) {
	d.t.Helper()
	got, err := d.machines[0].SameMachine(d.ctx, []int{0, 1})
	check(d.t, err)
	if got != want {
		d.t.Errorf("SameMachine = %v, want %v", got, want)
	}
}

func TestSameMachine(t *testing.T) {
	d := newRankPair(t)
	d.checkSameMachine(true)
	addressAndMachineID, err := d.store.Get(d.ctx, rankKey(1))
	check(t, err)
	err = d.store.Set(d.ctx, rankKey(1), append(addressAndMachineID, "elsewhere"...))
	check(t, err)
	d.checkSameMachine(false)
	ctx, cancel := context.WithCancel(d.ctx)
	cancel() // SameMachine would wait for rank 2, which does not exist
	_, err = d.machines[0].SameMachine(ctx, []int{2})
	if err == nil || !strings.Contains(err.Error(), "rank 2") {
		t.Errorf("SameMachine with a canceled context: got %v, want an error about rank 2", err)
	}
}

// Withdraw revokes tickets (numbers of collectives) that another rank has not submitted.
func TestWithdrawKeepsTicketsSubmittedByAllRanks(t *testing.T) {
	d := newRankPair(t)
	d.join()
	for _, p := range d.planes {
		p.Submit()
	}

	if d.planes[0].Withdraw() {
		t.Error("Withdraw = true although both ranks have submitted all tickets, want false")
	}

	d.planes[0].Submit()
	if !d.planes[0].Withdraw() {
		t.Error("Withdraw = false for a ticket that only one rank has submitted, want true")
	}
}

func BenchmarkPlane(b *testing.B) { controltest.Bench(b, joinAsMember) }
