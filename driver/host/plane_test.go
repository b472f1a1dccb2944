package host

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"symmem/driver"
	"symmem/internal/control"
	"symmem/internal/control/controltest"
)

// guest is a plane with the device that was opened for it.
type guest struct {
	control.Plane
	device *Device
}

func (g *guest) Close() error { return errors.Join(g.Plane.Close(), g.device.Close()) }

func joinAsGuest(ctx context.Context, m controltest.Member) (control.Plane, error) {
	d, err := Open(ctx, driver.Config{
		Rank: m.Rank(), Size: len(m.Group.Ranks), Store: m.Store, Timeout: m.Timeout,
		Late: m.Late,
	})
	if err != nil {
		return nil, err
	}
	p, err := d.Join(ctx, m.Group)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return &guest{p, d}, nil
}

func TestPlanesKeepTheContract(t *testing.T) { controltest.Run(t, joinAsGuest) }

func TestRanksOfOneMachineAreTogether(t *testing.T) {
	d := newDuo(t)
	want := func(together bool) {
		t.Helper()
		got, err := d.devices[0].Together(d.ctx, []int{0, 1})
		check(t, err)
		if got != together {
			t.Errorf("got %v, want %v", got, together)
		}
	}
	want(true)
	value, err := d.store.Get(d.ctx, rankKey(1))
	check(t, err)
	check(t, d.store.Set(d.ctx, rankKey(1), append(value, "elsewhere"...)))
	want(false)
	ctx, cancel := context.WithCancel(d.ctx)
	cancel()
	if _, err := d.devices[0].Together(ctx, []int{2}); err == nil ||
		!strings.Contains(err.Error(), "rank 2") {
		t.Errorf("got %v, want an error about rank 2, which has no device", err)
	}
}

// TestTicketsThatAllRanksHaveAreNotTakenBack: the others count on this rank's part in them.
func TestTicketsThatAllRanksHaveAreNotTakenBack(t *testing.T) {
	d := newDuo(t)
	var planes [2]control.Plane
	var joining sync.WaitGroup
	for r := range planes {
		joining.Go(func() {
			var err error
			planes[r], err = d.devices[r].Join(d.ctx, driver.GroupConfig{
				ID: "g", Rank: r, Ranks: []int{0, 1},
			})
			check(t, err)
		})
	}
	joining.Wait()
	for _, p := range planes {
		p.Submit()
	}
	if planes[0].Withdraw() {
		t.Error("a ticket was taken back that both ranks have")
	}
	planes[0].Submit()
	if !planes[0].Withdraw() {
		t.Error("a ticket was not taken back that one rank has")
	}
	for _, p := range planes {
		check(t, p.Close())
	}
}

func BenchmarkPlane(b *testing.B) { controltest.Bench(b, joinAsGuest) }
