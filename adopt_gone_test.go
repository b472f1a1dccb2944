package symmem_test

import (
	"errors"
	"runtime"
	"testing"

	"symmem"
	"symmem/internal/cuda"
)

// owner makes and destroys CUDA streams as another library does.
type owner struct {
	gpus *cuda.Driver
	gpu  cuda.Device
	at   cuda.Context
}

// anOwner is one on the rank's GPU.
func (r *rank) newOwner() *owner {
	o := &owner{}
	var err error
	o.gpus, err = cuda.Load()
	r.ok(err)
	o.gpu, err = o.gpus.Device(r.Device().Ordinal)
	r.ok(err)
	o.at, err = o.gpu.RetainPrimary()
	r.ok(err)
	return o
}

// do makes calls on a thread of the GPU.
func (o *owner) do(calls func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := o.gpus.Current()
	if err == nil {
		err = o.gpus.SetCurrent(o.at)
	}
	if err != nil {
		return err
	}
	return errors.Join(calls(), o.gpus.SetCurrent(before))
}

func (o *owner) stream() (s cuda.Stream, err error) {
	err = o.do(func() (err error) { s, err = o.gpus.StreamCreate(); return err })
	return s, err
}

func (o *owner) destroy(s cuda.Stream) error {
	return o.do(func() error { return o.gpus.StreamDestroy(s) })
}

// TestDestroyedForeignStreamIsNotQueried works on streams of another library, which
// destroys them without a word, and goes on with new calls, registrations, a trim and a close. The
// software GPU ends a process that asks about a stream that is gone, as CUDA's driver may.
func TestDestroyedForeignStreamIsNotQueried(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		if r.Device().Addressable {
			r.skip("streams of the host have no owner but symmem", symmem.ErrUnsupported)
		}
		p, o := r.pool(), r.newOwner()
		r.Interop().SetIdle(true) // for the trims and the close
		for i := range int64(4) {
			b := r.window(p, mib)
			m := r.memoryAt(b.Memory().Address(), b.Size()) // as other libraries name theirs
			theirs, err := o.stream()
			r.ok(err)
			s, err := r.Interop().AdoptStream(uintptr(theirs))
			r.ok(err)
			r.fill(b, float32(r.Rank()+1))
			r.ok(r.World().AllReduce(r.ctx, m, m, b.Size()/4-i, symmem.Float32, symmem.Sum, s))
			r.ok(s.Synchronize(r.ctx))
			r.ok(o.destroy(theirs))
			// A plan that is new, a segment that is, and the end of one.
			r.checkSum(r.World(), b)
			big := r.window(p, 64*mib)
			r.checkSum(r.World(), big)
			r.ok(big.Free())
			r.ok(p.Trim(r.ctx, 0))
		}
		r.closePool(p)
		r.ok(o.gpu.ReleasePrimary())
	})
}

// TestForeignCaptureBlocksRegistration puts a call into the capture of another
// library: until that ends nothing is registered, then the stream may go.
func TestForeignCaptureBlocksRegistration(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		if r.Device().Addressable {
			r.skip("streams of the host have no owner but symmem", symmem.ErrUnsupported)
		}
		p, o := r.pool(), r.newOwner()
		b := r.window(p, mib)
		m := r.memoryAt(b.Memory().Address(), b.Size())
		theirs, err := o.stream()
		r.ok(err)
		s, err := r.Interop().AdoptStream(uintptr(theirs))
		r.ok(err)
		r.ok(o.do(func() error { return o.gpus.BeginCapture(theirs, cuda.CaptureRelaxed) }))
		r.ok(r.World().AllReduce(r.ctx, m, m, b.Size()/4, symmem.Float32, symmem.Sum, s))
		r.alloc(p, 64*mib)
		r.wantErr(p.Register(r.ctx, r.World()), symmem.ErrCapturing)
		var graph cuda.Graph
		r.ok(o.do(func() (err error) { graph, err = o.gpus.EndCapture(theirs); return err }))
		r.ok(p.Register(r.ctx, r.World()))
		r.ok(o.destroy(theirs))
		r.Interop().SetIdle(true) // for the close
		r.checkSum(r.World(), r.window(p, 64*mib))
		r.ok(o.do(func() error { return o.gpus.GraphDestroy(graph) }))
		r.ok(o.gpu.ReleasePrimary())
	})
}
