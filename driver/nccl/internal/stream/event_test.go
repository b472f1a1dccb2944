package stream

import (
	"context"
	"runtime"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/gpu"
	"symmem/driver/nccl/internal/gpu/gputest"
)

func TestMain(m *testing.M) { gputest.Main(m) }

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
		e := d.NewEvent()
		stay[i] = new([8]byte)
		if err := s.Record(e); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	back := func() int {
		runtime.GC()
		d.pool.mu.Lock()
		defer d.pool.mu.Unlock()
		return len(d.pool.free)
	}
	if gpu.Poll(ctx, func() bool { return back() > events*9/10 }) != nil {
		t.Errorf("of %d events %d went back", events, back())
	}
	runtime.KeepAlive(stay)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// alone are the streams of a GPU that has no group.
func alone(t *testing.T) *Streams {
	t.Helper()
	return &Streams{
		GPU: gputest.Open(t), Groups: func() []Group { return nil },
		NewCalls: func() Calls { return none{} },
	}
}

// none are the calls of a graph without any.
type none struct{}

func (none) Launch(g *Graph, on *Stream) error {
	return g.streams.GPU.Do(func() error {
		if err := g.Queue(on); err != nil {
			return err
		}
		return g.Follow(on)
	})
}

func (none) Record(*Stream, driver.Plan) error { return driver.ErrUnsupported }

func (none) Close(bool) {}
