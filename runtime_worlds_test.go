package symmem_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"symmem"
)

// TestCaptureInOneWorldBlocksRegistrationInOther opens two worlds in a process, as a process that
// both trains a model and serves it does. A registration in one world must be refused during a
// capture in the other world, because on GPUs, it would invalidate the capture.
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

// TestCaptureInOneWorldWaitsForRegistrationInOther begins a capture in one world during a
// registration in another world. BeginCapture must wait until the registration has ended.
func TestCaptureInOneWorldWaitsForRegistrationInOther(t *testing.T) {
	skipOnHost(t, "on the host, registrations do not invalidate captures of other worlds")
	capturing, registering := openAlone(t), openAlone(t)
	s, err := capturing.NewStream()
	if err != nil {
		t.Fatal(err)
	}

	release := symmem.HoldRegistration(registering) // simulates a registration, which release ends
	var isReleased atomic.Bool
	const enough = 100 * time.Millisecond // for a BeginCapture that does not wait
	time.AfterFunc(enough, func() {
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

// TestWorldsInOneProcessAreIndependent aborts and closes one world while another world is in use.
// The other world must stay usable.
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
