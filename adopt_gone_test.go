package symmem_test

import (
	"errors"
	"runtime"
	"testing"

	"symmem"
	"symmem/internal/cuda"
)

// Symmem can adopt CUDA streams of another library. After the library has destroyed a stream, a
// query of the stream may crash the process. After SetIdle(true), symmem queries no adopted stream.

// streamOwner acts as the other library.
type streamOwner struct {
	cuda           *cuda.Driver
	gpu            cuda.Device
	primaryContext cuda.Context
}

// newStreamOwner retains the primary context. The caller must call gpu.ReleasePrimary at the end.
func (r *rank) newStreamOwner() *streamOwner {
	owner := &streamOwner{}
	var err error
	owner.cuda, err = cuda.Load()
	r.ok(err)
	owner.gpu, err = owner.cuda.Device(r.Device().Ordinal)
	r.ok(err)
	owner.primaryContext, err = owner.gpu.RetainPrimary()
	r.ok(err)
	return owner
}

func (owner *streamOwner) withContext(do func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	previousContext, err := owner.cuda.Current()
	if err != nil {
		return err
	}

	if err := owner.cuda.SetCurrent(owner.primaryContext); err != nil {
		return err
	}

	doErr := do()
	restoreErr := owner.cuda.SetCurrent(previousContext)
	return errors.Join(doErr, restoreErr)
}

func (owner *streamOwner) newStream() (cuda.Stream, error) {
	var s cuda.Stream
	err := owner.withContext(func() (createErr error) {
		s, createErr = owner.cuda.StreamCreate()
		return createErr
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
		r.skip("the host backend adopts no CUDA streams", symmem.ErrUnsupported)
	}
}

// The simulated GPU of the tests aborts the process on a query of a destroyed stream.
func TestDestroyedForeignStreamIsNotQueried(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		r.requireForeignStreams()
		p := r.pool()
		owner := r.newStreamOwner()
		r.Interop().SetIdle(true)
		const float32Bytes = 4
		const streams = 4
		for i := range int64(streams) {
			b := r.window(p, mib)
			foreignMemory := r.memoryAt(b.Memory().Address(), b.Size())
			ownerStream, s := r.adoptNewStream(owner)
			r.fill(b, float32(r.Rank()+1))
			count := b.Size()/float32Bytes - i // differs, so that no call is cached
			r.ok(r.World().AllReduce(
				r.ctx, foreignMemory, foreignMemory, count, symmem.Float32, symmem.Sum, s))
			r.ok(s.Synchronize(r.ctx))
			r.ok(owner.destroy(ownerStream))
			r.growAndTrimPool(p, b)
		}

		r.closePool(p)
		r.ok(owner.gpu.ReleasePrimary())
	})
}

func (r *rank) growAndTrimPool(p *symmem.Pool, b symmem.Buffer) {
	r.checkSum(r.World(), b)
	larger := r.window(p, 64*mib) // maps and registers more memory
	r.checkSum(r.World(), larger)
	r.ok(larger.Free())
	r.ok(p.Trim(r.ctx, 0))
}

// No memory can be registered while another library captures a stream.
func TestForeignCaptureBlocksRegistration(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		r.requireForeignStreams()
		p := r.pool()
		owner := r.newStreamOwner()
		b := r.window(p, mib)
		foreignMemory := r.memoryAt(b.Memory().Address(), b.Size())
		ownerStream, s := r.adoptNewStream(owner)
		r.ok(owner.withContext(func() error {
			return owner.cuda.BeginCapture(ownerStream, cuda.CaptureRelaxed)
		}))
		r.ok(r.World().AllReduce(
			r.ctx, foreignMemory, foreignMemory, b.Size()/4, symmem.Float32, symmem.Sum, s))
		r.alloc(p, 64*mib) // makes the pool map more memory
		r.wantErr(p.Register(r.ctx, r.World()), symmem.ErrCapturing)
		var graph cuda.Graph
		r.ok(owner.withContext(func() (err error) {
			graph, err = owner.cuda.EndCapture(ownerStream)
			return err
		}))
		r.ok(p.Register(r.ctx, r.World()))
		r.ok(owner.destroy(ownerStream))
		r.Interop().SetIdle(true) // because the stream is destroyed
		r.checkSum(r.World(), r.window(p, 64*mib))
		r.ok(owner.withContext(func() error { return owner.cuda.GraphDestroy(graph) }))
		r.ok(owner.gpu.ReleasePrimary())
	})
}
