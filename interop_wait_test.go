package symmem_test

import (
	"errors"
	"testing"

	"symmem"
)

func sumCall(b symmem.Buffer) symmem.Call {
	return symmem.Call{
		Operation: symmem.OpAllReduce, Type: symmem.Float32, Op: symmem.Sum, Count: b.Size() / 4,
		Send: b.Memory(), Recv: b.Memory(), Wait: true,
	}
}

func TestCallWaitsForResult(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		b := r.window(r.pool(), 64<<10)
		s, err := r.NewStream()
		r.ok(err)
		for _, s := range []*symmem.Stream{nil, s} {
			r.fill(b, float32(1+r.Rank()))
			r.ok(r.Interop().Do(r.ctx, r.World(), sumCall(b), s))
			r.checkAll(b, 3)
		}

		call := sumCall(b)
		call.Operation, call.Root = symmem.OpSend, 1-r.Rank()
		if r.Rank() == 1 {
			call.Operation = symmem.OpRecv
		}

		r.fill(b, float32(10+r.Rank()))
		r.ok(r.Interop().Do(r.ctx, r.World(), call, nil))
		r.checkAll(b, 10)
	})
}

// TestCallWaitsForEarlierWork queues work before a call that waits, and checks that the call waits
// for that work. A call that fails must return the failure and leave the stream usable.
func TestCallWaitsForEarlierWork(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		b := r.window(r.pool(), 64<<10)
		ran := false
		r.ok(r.DefaultStream().Host(func() { ran = true }))
		r.ok(r.Interop().Do(r.ctx, r.World(), sumCall(b), nil))
		if !ran {
			r.failf("Do returned before the stream was idle")
		}

		invalid := sumCall(b)
		invalid.Count = -1
		r.wantErr(r.Interop().Do(r.ctx, r.World(), invalid, nil), symmem.ErrInvalid)
		r.World().Abort()
		r.wantErr(r.Interop().Do(r.ctx, r.World(), sumCall(b), nil), symmem.ErrAborted)
		r.synchronize()
	})
}

func TestCallWithWaitIsRefusedInCapture(t *testing.T) {
	runRanks(t, 1, symmem.Options{}, func(r *rank) {
		b := r.window(r.pool(), 64<<10)
		r.ok(r.DefaultStream().BeginCapture())
		err := r.Interop().Do(r.ctx, r.World(), sumCall(b), nil)
		g, endErr := r.DefaultStream().EndCapture()
		r.ok(errors.Join(endErr, g.Close()))
		r.wantErr(err, symmem.ErrCapturing)
	})
}

func TestCallWithWaitAllocatesNothing(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		b := r.window(r.pool(), 64<<10)
		call := sumCall(b)
		r.ok(r.Interop().Do(r.ctx, r.World(), call, nil))
		r.expectNoAllocations(0, func() { r.ok(r.Interop().Do(r.ctx, r.World(), call, nil)) })
	})
}
