package symmem_test

import (
	"errors"
	"runtime"
	"testing"

	"symmem"
	"symmem/internal/cuda"
)

// streamOwner stands for another library that has streams on the rank's GPU. symmem adopts such a
// stream: it uses the stream by its handle, without owning it.
type streamOwner struct {
	cuda *cuda.Driver
	gpu  cuda.Device
	ctx  cuda.Context // the GPU's primary context
}

// newStreamOwner loads CUDA and retains the GPU's primary context. The caller must call
// gpu.ReleasePrimary at the end. newStreamOwner fails the test on an error.
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

// withContext runs calls while the GPU's primary context is the thread's current CUDA context.
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

// TestDestroyedForeignStreamIsNotQueried lets another library destroy its streams without a call
// of ForgetStream, and then uses symmem again. If symmem queried a destroyed stream, the software
// GPU (which simulates CUDA) would abort the process, as CUDA might.
func TestDestroyedForeignStreamIsNotQueried(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		if r.Device().Addressable {
			r.skip("no other library has streams on the host", symmem.ErrUnsupported)
		}

		p, owner := r.pool(), r.newStreamOwner()
		r.Interop().SetIdle(true) // promises that no adopted stream has work, so symmem need not ask
		for round := range int64(4) {
			b := r.window(p, mib)
			m := r.memoryAt(b.Memory().Address(), b.Size()) // like another library's tensor
			ownerStream, err := owner.newStream()
			r.ok(err)
			s, err := r.Interop().AdoptStream(uintptr(ownerStream))
			r.ok(err)
			r.fill(b, float32(r.Rank()+1))
			count := b.Size()/4 - round // a different count in each round needs a new plan
			r.ok(r.World().AllReduce(r.ctx, m, m, count, symmem.Float32, symmem.Sum, s))
			r.ok(s.Synchronize(r.ctx))
			r.ok(owner.destroy(ownerStream))
			// Use symmem: make a plan (the preparation of a call), and map and release a segment.
			r.checkSum(r.World(), b)
			big := r.window(p, 64*mib) // in a new segment
			r.checkSum(r.World(), big)
			r.ok(big.Free())
			r.ok(p.Trim(r.ctx, 0))
		}

		r.closePool(p)
		r.ok(owner.gpu.ReleasePrimary())
	})
}

// TestForeignCaptureBlocksRegistration adds a collective to another library's capture. Until the
// capture ends, no memory can be registered. Afterwards, the library may destroy its stream.
func TestForeignCaptureBlocksRegistration(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		if r.Device().Addressable {
			r.skip("no other library has streams on the host", symmem.ErrUnsupported)
		}

		p, owner := r.pool(), r.newStreamOwner()
		b := r.window(p, mib)
		m := r.memoryAt(b.Memory().Address(), b.Size()) // like another library's tensor
		ownerStream, err := owner.newStream()
		r.ok(err)
		s, err := r.Interop().AdoptStream(uintptr(ownerStream))
		r.ok(err)
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
