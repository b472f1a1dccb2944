package symmem_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"symmem"
)

// A process can open several worlds, for example to train a model and to serve it.

const hostAllowsBoth = "on the host, registrations do not invalidate captures of other worlds"

// A registration would invalidate a capture in another world, so Register fails.
func TestCaptureInOneWorldBlocksRegistrationInOther(t *testing.T) {
	skipOnHost(t, hostAllowsBoth)
	capturingRuntime, registeringRuntime := openAlone(t), openAlone(t)
	s, err := capturingRuntime.NewStream()
	if err != nil {
		t.Fatal(err)
	}

	if err := s.BeginCapture(); err != nil {
		t.Fatal(err)
	}

	p, err := registeringRuntime.NewPool(symmem.PoolOptions{Domain: registeringRuntime.World()})
	if err != nil {
		t.Fatal(err)
	}

	b, err := p.Alloc(4096)
	if err != nil {
		t.Fatal(err)
	}

	err = p.Register(t.Context(), registeringRuntime.World())
	if !errors.Is(err, symmem.ErrCapturing) {
		t.Errorf("Register during a capture in another world = %v, want ErrCapturing", err)
	}

	graph, err := s.EndCapture()
	if err != nil {
		t.Fatal(err)
	}

	if err := graph.Close(); err != nil {
		t.Fatal(err)
	}

	if err := p.Register(t.Context(), registeringRuntime.World()); err != nil {
		t.Errorf("Register after the capture: %v", err)
	}

	if err := b.Free(); err != nil {
		t.Error(err)
	}
}

func TestCaptureInOneWorldWaitsForRegistrationInOther(t *testing.T) {
	skipOnHost(t, hostAllowsBoth)
	capturingRuntime, registeringRuntime := openAlone(t), openAlone(t)
	s, err := capturingRuntime.NewStream()
	if err != nil {
		t.Fatal(err)
	}

	endRegistration := symmem.HoldRegistration(registeringRuntime)
	var hasEnded atomic.Bool
	const delay = 100 * time.Millisecond // long enough for BeginCapture to return too early
	time.AfterFunc(delay, func() {
		hasEnded.Store(true)
		endRegistration()
	})
	if err := s.BeginCapture(); err != nil {
		t.Fatal(err)
	}

	if !hasEnded.Load() {
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
	otherWorld := openRanks(t, 2, symmem.Options{Timeout: time.Minute})
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		other := &rank{Runtime: otherWorld[r.Rank()], t: t, ctx: t.Context()}
		b := r.window(r.pool(), 4096)
		otherBuffer := other.window(other.pool(), 4096)
		r.checkSum(r.World(), b)
		other.checkSum(other.World(), otherBuffer)
		other.World().Abort()
		other.wantErr(other.World().Check(r.ctx), symmem.ErrAborted)
		r.checkSum(r.World(), b)
		symmem.FreeLive(other.Runtime)
		_ = other.Close() // may return ErrAborted
		r.checkSum(r.World(), b)
		r.ok(r.World().Err())
	})
}
