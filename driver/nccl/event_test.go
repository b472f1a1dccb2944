package nccl

import (
	"context"
	"runtime"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/drivertest"
)

// TestEventsGoBackToTheDevice drops events between small things that stay: Go may put such things
// side by side, where the one that stays keeps the other.
func TestEventsGoBackToTheDevice(t *testing.T) {
	const events = 1000
	d := alone(t)
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	stay := make([]*[8]byte, events)
	for i := range events {
		e := d.newEvent()
		stay[i] = new([8]byte)
		if err := s.Record(e); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	back := func() int {
		runtime.GC()
		d.events.mu.Lock()
		defer d.events.mu.Unlock()
		return len(d.events.free)
	}
	if poll(ctx, func() bool { return back() > events*9/10 }) != nil {
		t.Errorf("of %d events %d went back", events, back())
	}
	runtime.KeepAlive(stay)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// alone opens a device for a world of one rank.
func alone(t *testing.T) *Device {
	t.Helper()
	d, err := Backend{}.Open(t.Context(), driver.Config{
		Size: 1, Store: &drivertest.Store{}, Timeout: 5 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d.(*Device)
}
