package controltest

import (
	"context"
	"errors"
	"testing"

	"symmem/driver"
	"symmem/internal/control"
)

var exchangeContracts = []contract{
	{"every rank gets everybody's payload, whatever its size", provePayloads},
	{"a payload that is too large is an error and harms nothing", provePayloadTooLarge},
	{"lanes do not wait for each other", proveLanes},
	{"an exchange ends with its context, and the plane with it", proveExchangeCancelled},
	{"a background exchange that fails ends the use of its lane alone", proveBackgroundAlone},
	{"a rank alone gets what it says", proveAlone},
}

// swap exchanges payloads of the given sizes by group rank and checks what comes.
func (w *world) swap(i int, lane driver.Lane, round int, sizes []int) error {
	return Swap(func(payload []byte) ([][]byte, error) {
		return w.planes[i].Exchange(w.ctx, lane, payload)
	}, i, round, sizes)
}

func provePayloads(t *testing.T, join Join) {
	for _, lane := range []driver.Lane{
		driver.LaneControl, driver.LaneBackground, driver.LaneFault,
	} {
		w := newWorld(t, join, 3, patience)
		w.each(t, func(i int, _ control.Plane) error {
			for round, sizes := range [][]int{
				{0, 0, 0}, {1, 2, 3}, {8 << 10, 0, 8<<10 + 1}, {9000, 40000, 17}, {0, 1, 0},
			} {
				if err := w.swap(i, lane, round, sizes); err != nil {
					return err
				}
			}
			return nil
		})
	}
	w := newWorld(t, join, 3, patience)
	w.each(t, func(i int, _ control.Plane) error {
		sizes := []int{driver.MaxPayload, driver.MaxPayload, 5}
		return w.swap(i, driver.LaneControl, 1, sizes)
	})
}

func provePayloadTooLarge(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	w.each(t, func(i int, p control.Plane) error {
		large := make([]byte, driver.MaxPayload+1)
		if _, err := p.Exchange(w.ctx, driver.LaneControl, large); err == nil {
			return errors.New("a payload above MaxPayload gave no error")
		}
		for _, lane := range []driver.Lane{-1, driver.Lanes} {
			if _, err := p.Exchange(w.ctx, lane, nil); err == nil {
				return errors.New("a lane that does not exist gave no error")
			}
		}
		return w.swap(i, driver.LaneControl, 1, []int{5, 5})
	})
}

// proveLanes lets rank 0 wait on the background lane until exchanges on the control lane and
// comparisons are over.
func proveLanes(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	over := make(chan struct{})
	background := func(i int) error {
		if i == 1 {
			<-over
		}
		return w.swap(i, driver.LaneBackground, 1, []int{9, 10000})
	}
	w.each(t, func(i int, p control.Plane) error {
		result := make(chan error, 1)
		go func() { result <- background(i) }()
		for round := range 20 {
			err := errors.Join(
				w.swap(i, driver.LaneControl, round, []int{20000, 3}),
				p.Compare(p.Submit(), &driver.Call{Digest: uint64(round)}),
			)
			if err != nil {
				return err
			}
		}
		if i == 1 {
			close(over)
		}
		return <-result
	})
}

func proveExchangeCancelled(t *testing.T, join Join) {
	w := newWorld(t, join, 2, patience)
	ctx, cancel := context.WithCancel(w.ctx)
	cancel()
	_, err := w.planes[0].Exchange(ctx, driver.LaneControl, nil)
	wantError(t, "the cancelled exchange", err, context.Canceled)
	wantError(t, "the cause", w.planes[0].Cause(), context.Canceled)
	_, err = w.planes[1].Exchange(w.ctx, driver.LaneControl, nil)
	wantError(t, "the exchange of the other rank", err, driver.ErrFault)
	_, err = w.planes[0].Exchange(w.ctx, driver.LaneControl, nil)
	wantError(t, "the next exchange", err, context.Canceled)
}

func proveBackgroundAlone(t *testing.T, join Join) {
	w := newWorld(t, join, 2, short)
	_, err := w.planes[0].Exchange(context.Background(), driver.LaneBackground, nil)
	if !errors.As(err, new(*driver.TimeoutError)) {
		t.Errorf("got %v, want a TimeoutError", err)
	}
	if _, err := w.planes[0].Exchange(w.ctx, driver.LaneBackground, nil); err == nil {
		t.Error("a lane that is out of step was used again")
	}
	w.each(t, func(i int, p control.Plane) error {
		return errors.Join(w.swap(i, driver.LaneControl, 1, []int{3, 4}), wantOpen(p))
	})
}

func proveAlone(t *testing.T, join Join) {
	w := newWorld(t, join, 1, patience)
	for lane := range driver.Lanes {
		must(t, w.swap(0, lane, 1, []int{5}))
	}
	w = newWorld(t, join, 1, patience)
	must(t, w.planes[0].Compare(w.planes[0].Submit(), &driver.Call{Digest: 7}))
}
