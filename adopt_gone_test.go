package symmem_test

import (
	"errors"
	"runtime"
	"testing"

	"symmem"
	"symmem/internal/cuda"
)

// Querying a CUDA stream that another library has destroyed may crash the process. A library whose
// streams symmem has adopted must call ForgetStream before it destroys them, or promise with
// SetIdle(true) that they have no unfinished work, so that symmem does not query them.

// streamOwner stands for the other library.
type streamOwner struct {
	cuda *cuda.Driver
	gpu  cuda.Device
	ctx  cuda.Context // primary
}

// The caller of newStreamOwner must call gpu.ReleasePrimary at the end.
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

func (r *rank) adoptNewStream(
	owner *streamOwner,
) (ownerStream cuda.Stream, adopted *symmem.Stream) {
	ownerStream, err := owner.newStream()
	r.ok(err)
	adopted, err = r.Interop().AdoptStream(uintptr(ownerStream))
	r.ok(err)
	return ownerStream, adopted
}

func (r *rank) requireForeignStreams() {
	if r.Device().Addressable {
		r.skip("no other library has streams on the host", symmem.ErrUnsupported)
	}
}

// The software GPU, which simulates CUDA, aborts the process on a query of a destroyed stream.
func TestDestroyedForeignStreamIsNotQueried(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		r.requireForeignStreams()
		p := r.pool()
		owner := r.newStreamOwner()
		r.Interop().SetIdle(true)
		for round := range int64(4) {
			b := r.window(p, mib)
			tensor := r.memoryAt(b.Memory().Address(), b.Size())
			ownerStream, s := r.adoptNewStream(owner)
			r.fill(b, float32(r.Rank()+1))
			count := b.Size()/4 - round // a new count prevents the reuse of cached state
			r.ok(r.World().AllReduce(r.ctx, tensor, tensor, count, symmem.Float32, symmem.Sum, s))
			r.ok(s.Synchronize(r.ctx))
			r.ok(owner.destroy(ownerStream))
			r.useAfterDestroy(p, b)
		}

		r.closePool(p)
		r.ok(owner.gpu.ReleasePrimary())
	})
}

func (r *rank) useAfterDestroy(p *symmem.Pool, b symmem.Buffer) {
	r.checkSum(r.World(), b)
	inNewSegment := r.window(p, 64*mib) // makes the pool map and register more memory
	r.checkSum(r.World(), inNewSegment)
	r.ok(inNewSegment.Free())
	r.ok(p.Trim(r.ctx, 0))
}

// While another library captures a stream, no memory can be registered.
func TestForeignCaptureBlocksRegistration(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		r.requireForeignStreams()
		p := r.pool()
		owner := r.newStreamOwner()
		b := r.window(p, mib)
		tensor := r.memoryAt(b.Memory().Address(), b.Size())
		ownerStream, s := r.adoptNewStream(owner)
		r.ok(owner.withContext(func() error {
			return owner.cuda.BeginCapture(ownerStream, cuda.CaptureRelaxed)
		}))
		r.ok(r.World().AllReduce(r.ctx, tensor, tensor, b.Size()/4, symmem.Float32, symmem.Sum, s))
		r.alloc(p, 64*mib) // makes the pool map more memory
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
