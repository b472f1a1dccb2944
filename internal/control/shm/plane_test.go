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

// member is a plane with a Machine that no other plane uses. Close closes both.
type member struct {
	control.Plane
	machine *Machine
}

func (m *member) Close() error { return errors.Join(m.Plane.Close(), m.machine.Close()) }

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
	return &member{p, machine}, nil
}

func TestPlaneContract(t *testing.T) { controltest.Run(t, joinAsMember) }

// TestSameMachine changes the machine ID that rank 1 has published, and then asks for a rank that
// does not exist.
func TestSameMachine(t *testing.T) {
	d := newRankPair(t)
	checkSame := func(want bool) {
		t.Helper()
		got, err := d.machines[0].SameMachine(d.ctx, []int{0, 1})
		check(t, err)
		if got != want {
			t.Errorf("SameMachine = %v, want %v", got, want)
		}
	}
	const same, different = true, false
	checkSame(same)
	value, err := d.store.Get(d.ctx, rankKey(1))
	check(t, err)
	check(t, d.store.Set(d.ctx, rankKey(1), append(value, "elsewhere"...)))
	checkSame(different)
	ctx, cancel := context.WithCancel(d.ctx)
	cancel()
	_, err = d.machines[0].SameMachine(ctx, []int{2})
	if err == nil || !strings.Contains(err.Error(), "rank 2") {
		t.Errorf("SameMachine with a canceled context: got %v, want an error about rank 2", err)
	}
}

// TestWithdrawKeepsTicketsSubmittedByAllRanks calls Withdraw when both ranks have submitted the
// same tickets, which it must not revoke. It calls Withdraw again when only rank 0 has submitted
// another.
func TestWithdrawKeepsTicketsSubmittedByAllRanks(t *testing.T) {
	d := newRankPair(t)
	d.join()
	planes := d.planes
	for _, p := range planes {
		p.Submit()
	}
	if planes[0].Withdraw() {
		t.Error("Withdraw = true although both ranks have submitted all tickets, want false")
	}
	planes[0].Submit()
	if !planes[0].Withdraw() {
		t.Error("Withdraw = false for a ticket that only one rank has submitted, want true")
	}
}

func BenchmarkPlane(b *testing.B) { controltest.Bench(b, joinAsMember) }
