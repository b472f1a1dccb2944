package symmem_test

import (
	"errors"
	"runtime"
	"testing"

	"symmem"
	"symmem/internal/cuda"
)

// owner stands in for another library that owns streams on the rank's GPU.
type owner struct {
	gpus *cuda.Driver
	gpu  cuda.Device
	ctx  cuda.Context
}

func (r *rank) newOwner() *owner {
	o := &owner{}
	var err error
	o.gpus, err = cuda.Load()
	r.ok(err)
	o.gpu, err = o.gpus.Device(r.Device().Ordinal)
	r.ok(err)
	o.ctx, err = o.gpu.RetainPrimary()
	r.ok(err)
	return o
}

// do runs calls on a thread on which the GPU's CUDA context is current.
func (o *owner) do(calls func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := o.gpus.Current()
	if err == nil {
		err = o.gpus.SetCurrent(o.ctx)
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

// TestDestroyedForeignStreamIsNotQueried destroys another library's streams without calling
// ForgetStream, and then makes calls, maps, registers and unmaps memory, and closes the Runtime. If
// symmem queried a destroyed stream, the software GPU would abort the process, as CUDA might.
func TestDestroyedForeignStreamIsNotQueried(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		if r.Device().Addressable {
			r.skip("no other library has streams on the host", symmem.ErrUnsupported)
		}
		p, o := r.pool(), r.newOwner()
		r.Interop().SetIdle(true) // so that Trim and Close do not query the streams
		for i := range int64(4) {
			b := r.window(p, mib)
			m := r.memoryAt(b.Memory().Address(), b.Size()) // by address, like another library's tensor
			foreign, err := o.stream()
			r.ok(err)
			s, err := r.Interop().AdoptStream(uintptr(foreign))
			r.ok(err)
			r.fill(b, float32(r.Rank()+1))
			r.ok(r.World().AllReduce(r.ctx, m, m, b.Size()/4-i, symmem.Float32, symmem.Sum, s))
			r.ok(s.Synchronize(r.ctx))
			r.ok(o.destroy(foreign))
			// Make a new plan, map a segment and release one.
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

// TestForeignCaptureBlocksRegistration adds a call to another library's capture. Until that
// capture ends, no memory can be registered; afterwards, the library may destroy its stream.
func TestForeignCaptureBlocksRegistration(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		if r.Device().Addressable {
			r.skip("no other library has streams on the host", symmem.ErrUnsupported)
		}
		p, o := r.pool(), r.newOwner()
		b := r.window(p, mib)
		m := r.memoryAt(b.Memory().Address(), b.Size())
		foreign, err := o.stream()
		r.ok(err)
		s, err := r.Interop().AdoptStream(uintptr(foreign))
		r.ok(err)
		r.ok(o.do(func() error { return o.gpus.BeginCapture(foreign, cuda.CaptureRelaxed) }))
		r.ok(r.World().AllReduce(r.ctx, m, m, b.Size()/4, symmem.Float32, symmem.Sum, s))
		r.alloc(p, 64*mib)
		r.wantErr(p.Register(r.ctx, r.World()), symmem.ErrCapturing)
		var graph cuda.Graph
		r.ok(o.do(func() (err error) { graph, err = o.gpus.EndCapture(foreign); return err }))
		r.ok(p.Register(r.ctx, r.World()))
		r.ok(o.destroy(foreign))
		r.Interop().SetIdle(true) // so that Close does not query the stream
		r.checkSum(r.World(), r.window(p, 64*mib))
		r.ok(o.do(func() error { return o.gpus.GraphDestroy(graph) }))
		r.ok(o.gpu.ReleasePrimary())
	})
}
