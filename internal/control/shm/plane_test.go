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

// A plane connects a rank to a group, and a Machine to the ranks on its machine. The contract tests
// check the behavior that the planes of all control packages share.

// member is a plane for the contract tests, with a Machine that no other plane uses. Close closes
// both.
type member struct {
	control.Plane
	machine *Machine
}

func (m *member) Close() error {
	planeErr := m.Plane.Close()
	machineErr := m.machine.Close()
	return errors.Join(planeErr, machineErr)
}

// NoteFetch makes member a control.FetchNoter, as the plane is one.
func (m *member) NoteFetch(rank int) (end func()) {
	return m.Plane.(control.FetchNoter).NoteFetch(rank)
}

// joinAsMember opens a Machine for a rank of a contract test and joins its group.
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

// checkSameMachine checks whether rank 0 finds that ranks 0 and 1 are on one machine.
func (d *rankPair) checkSameMachine(want bool) {
	d.t.Helper()
	got, err := d.machines[0].SameMachine(d.ctx, []int{0, 1})
	check(d.t, err)
	if got != want {
		d.t.Errorf("SameMachine = %v, want %v", got, want)
	}
}

// TestSameMachine asks whether the ranks are on one machine, before and after it changes the
// machine ID that rank 1 has stored. Then it asks for rank 2, which does not exist.
func TestSameMachine(t *testing.T) {
	d := newRankPair(t)
	d.checkSameMachine(true)
	value, err := d.store.Get(d.ctx, rankKey(1)) // ends with the machine ID
	check(t, err)
	err = d.store.Set(d.ctx, rankKey(1), append(value, "elsewhere"...))
	check(t, err)
	d.checkSameMachine(false)
	ctx, cancel := context.WithCancel(d.ctx)
	cancel() // so that SameMachine does not wait for rank 2
	_, err = d.machines[0].SameMachine(ctx, []int{2})
	if err == nil || !strings.Contains(err.Error(), "rank 2") {
		t.Errorf("SameMachine with a canceled context: got %v, want an error about rank 2", err)
	}
}

// A rank submits each collective before it runs it, and gets a number, the ticket. Withdraw revokes
// the tickets that not all ranks have submitted, and returns whether there were any.
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
