package symmem_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"symmem"
)

// TestCaptureInOneWorldBlocksRegistrationInOther opens two worlds, as a process does that belongs
// to a trainer and an engine. On GPUs, a registration would invalidate the other world's capture.
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
	if err := errors.Join(err, graph.Close()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Register(t.Context(), registering.World()), b.Free()); err != nil {
		t.Error(err)
	}
}

// TestCaptureInOneWorldWaitsForRegistrationInOther begins a capture in one world while another
// world is registering memory. The registration ends after a moment.
func TestCaptureInOneWorldWaitsForRegistrationInOther(t *testing.T) {
	skipOnHost(t, "on the host, registrations do not invalidate captures of other worlds")
	capturing, registering := openAlone(t), openAlone(t)
	s, err := capturing.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	release := symmem.HoldRegistration(registering)
	var isReleased atomic.Bool
	time.AfterFunc(100*time.Millisecond, func() {
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
	if err := errors.Join(err, graph.Close()); err != nil {
		t.Error(err)
	}
}

// TestWorldsInOneProcessAreIndependent aborts and closes one world while another world is in use.
func TestWorldsInOneProcessAreIndependent(t *testing.T) {
	trainers := openRanks(t, 2, symmem.Options{Timeout: time.Minute})
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		trainer := &rank{Runtime: trainers[r.Rank()], t: t, ctx: t.Context()}
		pool, trainerPool := r.pool(), trainer.pool()
		b, other := r.window(pool, 4096), trainer.window(trainerPool, 4096)
		r.checkSum(r.World(), b)
		trainer.checkSum(trainer.World(), other)
		trainer.World().Abort()
		trainer.wantErr(trainer.World().Check(r.ctx), symmem.ErrAborted)
		r.checkSum(r.World(), b)
		symmem.FreeLive(trainer.Runtime)
		_ = trainer.Close() // returns the abort
		r.checkSum(r.World(), b)
		r.ok(r.World().Err())
	})
}
