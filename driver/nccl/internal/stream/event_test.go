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

// TestUnusedEventsReturnToPool drops events that were allocated among small objects that stay
// alive. Go may allocate several tiny objects in one block, and a single live object would keep
// the whole block alive.
func TestUnusedEventsReturnToPool(t *testing.T) {
	const events = 1000
	d := newStreams(t)
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}

	live, dropped := make([]*[8]byte, events), make([]driver.Event, events)
	for i := range events {
		dropped[i] = d.NewEvent() // dropped later, so that no event is used again
		live[i] = new([8]byte)
		if err := s.Record(dropped[i]); err != nil {
			t.Fatal(err)
		}
	}

	clear(dropped)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	returned := func() int {
		runtime.GC()
		d.pool.mu.Lock()
		defer d.pool.mu.Unlock()
		return len(d.pool.unused)
	}
	if gpu.Poll(ctx, func() bool { return returned() > events*9/10 }) != nil {
		t.Errorf("%d of %d events returned to the pool, want more than 90%%", returned(), events)
	}

	runtime.KeepAlive(live)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func newStreams(t *testing.T) *Streams {
	t.Helper()
	return &Streams{
		GPU: gputest.Open(t), Groups: func() []Group { return nil },
		LongestTimeout: func() time.Duration { return time.Minute },
		NewCalls:       func() Calls { return noCalls{} },
	}
}

// noCalls implements Calls for graphs without group calls.
type noCalls struct{}

func (noCalls) Launch(g *Graph, stream *Stream) error {
	return g.streams.GPU.Do(func() error {
		if err := g.Queue(stream); err != nil {
			return err
		}

		return g.RecordEvents(stream)
	})
}

func (noCalls) Record(*Stream, driver.Plan) error { return driver.ErrUnsupported }

func (noCalls) Close(bool) {}
