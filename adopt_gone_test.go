package symmem_test

import (
	"errors"
	"runtime"
	"testing"

	"symmem"
	"symmem/internal/cuda"
)

// Another library creates a CUDA stream, and symmem adopts it: symmem makes calls on the stream,
// but the library still owns the stream and destroys it. Until then, symmem may query the stream to
// learn whether its work is done. A query of a destroyed stream may crash the process.
//
// The library normally calls ForgetStream before it destroys the stream. Here it does not. It calls
// SetIdle(true) instead: a promise that adopted streams have no work, so that symmem need not query
// them.

// streamOwner stands for the other library.
type streamOwner struct {
	cuda *cuda.Driver
	gpu  cuda.Device
	ctx  cuda.Context // the GPU's primary context
}

// newStreamOwner loads CUDA and retains the primary context of the rank's GPU. The caller must call
// gpu.ReleasePrimary at the end.
func (r *rank) newStreamOwner() *streamOwner {
	owner := &streamOwner{}
	var err error
	owner.cuda, err = cuda.Load()
	r.ok(err)
	owner.gpu, err = owner.cuda.Device(r.Device().Ordinal)
	r.ok(err)
	owner.ctx, err = owner.gpu.RetainPrimary()
	r.ok(err)
	return owner
}

// withContext runs calls while the GPU's primary context is the current context of the thread, as
// CUDA requires for most calls.
func (owner *streamOwner) withContext(calls func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	previousContext, err := owner.cuda.Current()
	if err == nil {
		err = owner.cuda.SetCurrent(owner.ctx)
	}

	if err != nil {
		return err
	}

	callsErr := calls()
	restoreErr := owner.cuda.SetCurrent(previousContext)
	return errors.Join(callsErr, restoreErr)
}

// newStream creates a CUDA stream, which destroy destroys.
func (owner *streamOwner) newStream() (s cuda.Stream, err error) {
	err = owner.withContext(func() (err error) {
		s, err = owner.cuda.StreamCreate()
		return err
	})
	return s, err
}

func (owner *streamOwner) destroy(s cuda.Stream) error {
	return owner.withContext(func() error { return owner.cuda.StreamDestroy(s) })
}

// adopt creates a stream of the other library and adopts it. It returns the library's stream and
// the adopted one.
func (r *rank) adopt(owner *streamOwner) (cuda.Stream, *symmem.Stream) {
	ownerStream, err := owner.newStream()
	r.ok(err)
	adopted, err := r.Interop().AdoptStream(uintptr(ownerStream))
	r.ok(err)
	return ownerStream, adopted
}

// requireForeignStreams skips the test on the host backend, where no other library has streams.
func (r *rank) requireForeignStreams() {
	if r.Device().Addressable {
		r.skip("no other library has streams on the host", symmem.ErrUnsupported)
	}
}

// TestDestroyedForeignStreamIsNotQueried destroys adopted streams and then uses symmem in several
// ways. The software GPU, which simulates CUDA, would abort the process at a query of a destroyed
// stream.
func TestDestroyedForeignStreamIsNotQueried(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		r.requireForeignStreams()
		p := r.pool()
		owner := r.newStreamOwner()
		r.Interop().SetIdle(true)
		for round := range int64(4) {
			b := r.window(p, mib)
			m := r.memoryAt(b.Memory().Address(), b.Size()) // like another library's tensor
			ownerStream, s := r.adopt(owner)
			r.fill(b, float32(r.Rank()+1))
			count := b.Size()/4 - round // differs between the rounds, so that each needs a new plan
			r.ok(r.World().AllReduce(r.ctx, m, m, count, symmem.Float32, symmem.Sum, s))
			r.ok(s.Synchronize(r.ctx))
			r.ok(owner.destroy(ownerStream))
			r.useAfterDestroy(p, b)
		}

		r.closePool(p)
		r.ok(owner.gpu.ReleasePrimary())
	})
}

// useAfterDestroy makes collectives, maps a segment (a part of a pool's memory) and releases it.
func (r *rank) useAfterDestroy(p *symmem.Pool, b symmem.Buffer) {
	r.checkSum(r.World(), b)
	inNewSegment := r.window(p, 64*mib)
	r.checkSum(r.World(), inNewSegment)
	r.ok(inNewSegment.Free())
	r.ok(p.Trim(r.ctx, 0))
}

// TestForeignCaptureBlocksRegistration adds a collective to another library's capture. Until the
// capture ends, no memory can be registered. Afterwards, the library may destroy its stream.
func TestForeignCaptureBlocksRegistration(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		r.requireForeignStreams()
		p := r.pool()
		owner := r.newStreamOwner()
		b := r.window(p, mib)
		m := r.memoryAt(b.Memory().Address(), b.Size()) // like another library's tensor
		ownerStream, s := r.adopt(owner)
		r.ok(owner.withContext(func() error {
			return owner.cuda.BeginCapture(ownerStream, cuda.CaptureRelaxed)
		}))
		r.ok(r.World().AllReduce(r.ctx, m, m, b.Size()/4, symmem.Float32, symmem.Sum, s))
		r.alloc(p, 64*mib) // in a new segment, which is not registered
		r.wantErr(p.Register(r.ctx, r.World()), symmem.ErrCapturing)
		var graph cuda.Graph
		r.ok(owner.withContext(func() (err error) {
			graph, err = owner.cuda.EndCapture(ownerStream)
			return err
		}))
		r.ok(p.Register(r.ctx, r.World()))
		r.ok(owner.destroy(ownerStream))
		r.Interop().SetIdle(true) // so that Close does not query the destroyed stream
		r.checkSum(r.World(), r.window(p, 64*mib))
		r.ok(owner.withContext(func() error { return owner.cuda.GraphDestroy(graph) }))
		r.ok(owner.gpu.ReleasePrimary())
	})
}
