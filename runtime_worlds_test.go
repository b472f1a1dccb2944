package symmem_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"symmem"
)

// A process can open several worlds, for example to train a model and to serve it. On a GPU, a
// registration in one world would invalidate a capture in another world.
func TestCaptureInOneWorldBlocksRegistrationInOther(t *testing.T) {
	skipOnHost(t, "on the host, registrations do not invalidate captures of other worlds")
	capturing, registering := openAlone(t), openAlone(t)
	s, err := capturing.NewStream()
	if err != nil {
		t.Fatal(err)
	}

	if err := s.BeginCapture(); err != nil {
		t.Fatal(err)
	}

	p, err := registering.NewPool(symmem.PoolOptions{Domain: registering.World()})
	if err != nil {
		t.Fatal(err)
	}

	b, err := p.Alloc(4096)
	if err != nil {
		t.Fatal(err)
	}

	if err := p.Register(t.Context(), registering.World()); !errors.Is(err, symmem.ErrCapturing) {
		t.Errorf("Register during a capture in another world = %v, want ErrCapturing", err)
	}

	graph, err := s.EndCapture()
	if err != nil {
		t.Fatal(err)
	}

	if err := graph.Close(); err != nil {
		t.Fatal(err)
	}

	if err := p.Register(t.Context(), registering.World()); err != nil {
		t.Errorf("Register after the capture: %v", err)
	}

	if err := b.Free(); err != nil {
		t.Error(err)
	}
}

func TestCaptureInOneWorldWaitsForRegistrationInOther(t *testing.T) {
	skipOnHost(t, "on the host, registrations do not invalidate captures of other worlds")
	capturing, registering := openAlone(t), openAlone(t)
	s, err := capturing.NewStream()
	if err != nil {
		t.Fatal(err)
	}

	release := symmem.HoldRegistration(registering) // ends a simulated registration
	var isReleased atomic.Bool
	const delay = 100 * time.Millisecond // a BeginCapture that does not wait returns earlier
	time.AfterFunc(delay, func() {
		isReleased.Store(true)
		release()
	})
	if err := s.BeginCapture(); err != nil {
		t.Fatal(err)
	}

	if !isReleased.Load() {
		t.Error("BeginCapture returned during a registration in another world")
	}

	graph, err := s.EndCapture()
	if err != nil {
		t.Fatal(err)
	}

	if err := graph.Close(); err != nil {
		t.Error(err)
	}
}

func TestWorldsInOneProcessAreIndependent(t *testing.T) {
	abortedRuntimes := openRanks(t, 2, symmem.Options{Timeout: time.Minute})
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		aborted := &rank{Runtime: abortedRuntimes[r.Rank()], t: t, ctx: t.Context()}
		b := r.window(r.pool(), 4096)
		abortedBuffer := aborted.window(aborted.pool(), 4096)
		r.checkSum(r.World(), b)
		aborted.checkSum(aborted.World(), abortedBuffer)
		aborted.World().Abort()
		aborted.wantErr(aborted.World().Check(r.ctx), symmem.ErrAborted)
		r.checkSum(r.World(), b)
		symmem.FreeLive(aborted.Runtime)
		_ = aborted.Close() // returns ErrAborted
		r.checkSum(r.World(), b)
		r.ok(r.World().Err())
	})
}
