package symmem_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"symmem"
)

// operation describes a collective and its expected result. Element i of rank k's send buffer is
// value(k, i).
type operation struct {
	kind symmem.Operation
	// everywhere is set if every backend has a window path for the operation.
	everywhere bool
	// parts returns the lengths of the send and receive buffers in a group of n ranks, in units of
	// count elements.
	parts func(n int) (send, recv int)
	call  func(r *rank, send, recv symmem.Memory, count int64) error
	// want returns element i of rank me's result. ok is false if the rank has no result.
	want func(n, me, i, count int) (element float32, ok bool)
	// In an in-place call, the smaller buffer is one part of the larger buffer, and inPlace returns
	// the index of that part. inPlace is nil if the operation cannot run in place.
	inPlace func(me int) int
}

const root = 1

func value(rank, i int) float32 { return float32((rank+1)*1000 + i%100) }

func total(n, i int) (sum float32) {
	for k := range n {
		sum += value(k, i)
	}

	return sum
}

func onePart(int) (send, recv int) { return 1, 1 }

func firstPart(int) int { return 0 }

var operations = []operation{
	{
		symmem.OpAllReduce, true, onePart,
		func(r *rank, send, recv symmem.Memory, count int64) error {
			return r.World().AllReduce(r.ctx, send, recv, count, symmem.Float32, symmem.Sum, nil)
		},
		func(n, _, i, _ int) (float32, bool) { return total(n, i), true }, firstPart,
	},
	{
		symmem.OpAllGather, true, func(n int) (int, int) { return 1, n },
		func(r *rank, send, recv symmem.Memory, count int64) error {
			return r.World().AllGather(r.ctx, send, recv, count, symmem.Float32, nil)
		},
		func(_, _, i, count int) (float32, bool) { return value(i/count, i%count), true },
		func(me int) int { return me },
	},
	{
		symmem.OpReduceScatter, true, func(n int) (int, int) { return n, 1 },
		func(r *rank, send, recv symmem.Memory, count int64) error {
			return r.World().ReduceScatter(r.ctx, send, recv, count, symmem.Float32, symmem.Sum, nil)
		},
		func(n, me, i, count int) (float32, bool) { return total(n, me*count+i), true },
		func(me int) int { return me },
	},
	{
		symmem.OpBroadcast, false, onePart,
		func(r *rank, send, recv symmem.Memory, count int64) error {
			return r.World().Broadcast(r.ctx, send, recv, count, symmem.Float32, root, nil)
		},
		func(_, _, i, _ int) (float32, bool) { return value(root, i), true }, firstPart,
	},
	{
		symmem.OpReduce, false, onePart,
		func(r *rank, send, recv symmem.Memory, count int64) error {
			return r.World().Reduce(r.ctx, send, recv, count, symmem.Float32, symmem.Sum, root, nil)
		},
		func(n, me, i, _ int) (float32, bool) { return total(n, i), me == root }, firstPart,
	},
	{
		symmem.OpAllToAll, false, func(n int) (int, int) { return n, n },
		func(r *rank, send, recv symmem.Memory, count int64) error {
			return r.World().AllToAll(r.ctx, send, recv, count, symmem.Float32, nil)
		},
		func(_, me, i, count int) (float32, bool) {
			return value(i/count, me*count+i%count), true
		}, nil,
	},
}

// memories allocates the send and receive memory of an operation. For an in-place call, the smaller
// memory is the part of the larger one with the given index.
type memories func(r *rank, sendLen, recvLen, index int) (send, recv symmem.Memory)

// windows returns two ranges in windows, neither of which begins at the start of its buffer.
func windows(r *rank, sendLen, recvLen, _ int) (send, recv symmem.Memory) {
	p := r.pool()
	const skip = 96
	a := r.alloc(p, int64(4*sendLen+skip))
	b := r.window(p, int64(4*recvLen+skip))
	return r.part(a.Memory(), skip, 4*sendLen), r.part(b.Memory(), skip, 4*recvLen)
}

func inPlace(r *rank, sendLen, recvLen, index int) (send, recv symmem.Memory) {
	small, large := 4*min(sendLen, recvLen), 4*max(sendLen, recvLen)
	m := r.window(r.pool(), int64(large)).Memory()
	whole, part := r.part(m, 0, large), r.part(m, small*index, small)
	if sendLen > recvLen {
		return whole, part
	}

	return part, whole
}

func unregistered(r *rank, sendLen, recvLen, _ int) (send, recv symmem.Memory) {
	return r.unregistered(int64(4 * sendLen)), r.unregistered(int64(4 * recvLen))
}

// goSlices returns Go slices. GPUs cannot use them, and they are never symmetric.
func goSlices(r *rank, sendLen, recvLen, _ int) (send, recv symmem.Memory) {
	r.requireAddressable()
	return symmem.Host(make([]float32, sendLen)), symmem.Host(make([]float32, recvLen))
}

func (r *rank) part(m symmem.Memory, offset, bytes int) symmem.Memory {
	r.t.Helper()
	p, err := m.Slice(int64(offset), int64(bytes))
	r.ok(err)
	return p
}

func TestCollectives(t *testing.T) {
	for _, op := range operations {
		for _, row := range []struct {
			name, path string
			memory     memories
		}{
			{"from window to window", "window", windows},
			{"in place", "window", inPlace},
			{"without windows", "plain", unregistered},
			{"on Go slices", "plain", goSlices},
		} {
			if op.inPlace == nil && row.name == "in place" {
				continue
			}

			t.Run(op.kind.String()+" "+row.name, func(t *testing.T) {
				runRanks(t, 3, symmem.Options{}, func(r *rank) { checkOperation(r, &op, row.memory, row.path) })
			})
		}
	}
}

func checkOperation(r *rank, op *operation, memory memories, path string) {
	n, me := r.Size(), r.Rank()
	sendParts, recvParts := op.parts(n)
	for _, count := range []int{1, 7, 4096, 50_000} {
		index := 0
		if op.inPlace != nil {
			index = op.inPlace(me)
		}

		send, recv := memory(r, sendParts*count, recvParts*count, index)
		e, err := r.World().Explain(op.kind, send, recv, int64(count), symmem.Float32)
		r.ok(err)
		if path == "window" && lacksWindowPath(e) && !op.everywhere {
			path = "plain"
		}

		elements := make([]float32, sendParts*count)
		for i := range elements {
			elements[i] = value(me, i)
		}

		write(r, send, elements)
		r.ok(op.call(r, send, recv, int64(count)))
		for i, got := range read[float32](r, recv) {
			if want, ok := op.want(n, me, i, count); ok && got != want {
				r.failf("count %d: element %d = %v, want %v", count, i, got, want)
			}
		}
	}

	if paths := r.World().Stats().Paths; paths[path] != 4 || len(paths) != 1 {
		r.failf("Paths = %v, want 4 calls on the %s path", paths, path)
	}
}

func TestSendRecv(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		v := make([]int64, 100_000)
		for i := range v {
			v[i] = int64(i) << 20
		}

		m, count := r.unregistered(int64(8*len(v))), int64(len(v))
		if r.Rank() == 0 {
			write(r, m, v)
			r.skipUnsupported(r.World().Send(r.ctx, m, count, symmem.Int64, 1, nil))
			r.synchronize()
			return
		}

		r.skipUnsupported(r.World().Recv(r.ctx, m, count, symmem.Int64, 0, nil))
		if got := read[int64](r, m); !slices.Equal(got, v) {
			r.failf("got a message that begins with %v, want %v", got[:10], v[:10])
		}
	})
}

func TestBarrierWaitsForAllRanks(t *testing.T) {
	arrived := make(chan int, 3)
	runRanks(t, 3, symmem.Options{}, func(r *rank) {
		arrived <- r.Rank()
		r.ok(r.World().Barrier(r.ctx, nil))
		r.synchronize()
		if len(arrived) != 3 {
			r.failf("the barrier completed when %d ranks had arrived, want 3", len(arrived))
		}
	})
}

func TestReductionsAndTypes(t *testing.T) {
	for op, want := range map[symmem.ReduceOp]int32{
		symmem.Sum: 12, symmem.Prod: 48, symmem.Min: 2, symmem.Max: 6, symmem.Avg: 4,
	} {
		t.Run(op.String(), func(t *testing.T) {
			runRanks(t, 3, symmem.Options{}, func(r *rank) {
				m := r.unregistered(4)
				write(r, m, []int32{int32(2 * (r.Rank() + 1))})
				r.ok(r.World().AllReduce(r.ctx, m, m, 1, symmem.Int32, op, nil))
				if got := read[int32](r, m); got[0] != want {
					r.failf("got %d, want %d", got[0], want)
				}
			})
		})
	}
}

func TestEmptyCollectives(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		none := symmem.Memory{}
		r.ok(r.World().AllReduce(r.ctx, none, none, 0, symmem.Float32, symmem.Sum, nil))
		r.ok(r.World().AllGather(r.ctx, none, none, 0, symmem.Float32, nil))
		r.synchronize()
	})
}

// invalidCollectives lists calls that must fail on any rank.
var invalidCollectives = []struct {
	name string
	want error
	call func(r *rank, p *symmem.Pool, m symmem.Memory) error
}{
	{"a negative count", symmem.ErrInvalid, func(r *rank, _ *symmem.Pool, m symmem.Memory) error {
		return reduce(r, m, -1, symmem.Float32, symmem.Sum)
	}},
	{
		"a count past the buffer", symmem.ErrOutOfRange,
		func(r *rank, _ *symmem.Pool, m symmem.Memory) error {
			return reduce(r, m, m.Bytes()/4+1, symmem.Float32, symmem.Sum)
		},
	},
	{
		"a count whose bytes overflow", symmem.ErrOutOfRange,
		func(r *rank, _ *symmem.Pool, m symmem.Memory) error {
			return reduce(r, m, 1<<62, symmem.Float64, symmem.Sum)
		},
	},
	{
		"an unknown type", symmem.ErrInvalid,
		func(r *rank, _ *symmem.Pool, m symmem.Memory) error {
			return reduce(r, m, 1, symmem.DataType(99), symmem.Sum)
		},
	},
	{
		"an unknown reduction", symmem.ErrInvalid,
		func(r *rank, _ *symmem.Pool, m symmem.Memory) error {
			return reduce(r, m, 1, symmem.Float32, symmem.ReduceOp(99))
		},
	},
	{
		"a root outside the group", symmem.ErrInvalid,
		func(r *rank, _ *symmem.Pool, m symmem.Memory) error {
			return r.World().Broadcast(r.ctx, m, m, 1, symmem.Float32, 2, nil)
		},
	},
	{
		"a peer outside the group", symmem.ErrInvalid,
		func(r *rank, _ *symmem.Pool, m symmem.Memory) error {
			return r.World().Send(r.ctx, m, 1, symmem.Float32, -1, nil)
		},
	},
	{
		"memory that is not aligned", symmem.ErrInvalid,
		func(r *rank, _ *symmem.Pool, m symmem.Memory) error {
			misaligned, err := m.Slice(2, 1024)
			r.ok(err)
			return reduce(r, misaligned, 8, symmem.Float32, symmem.Sum)
		},
	},
	{
		"the zero Memory", symmem.ErrOutOfRange,
		func(r *rank, _ *symmem.Pool, _ symmem.Memory) error {
			return reduce(r, symmem.Memory{}, 1, symmem.Float32, symmem.Sum)
		},
	},
	{
		"a freed buffer", symmem.ErrFreed,
		func(r *rank, p *symmem.Pool, _ symmem.Memory) error {
			b := r.alloc(p, 512)
			r.ok(b.Free())
			return reduce(r, b.Memory(), 1, symmem.Float32, symmem.Sum)
		},
	},
}

func reduce(
	r *rank, m symmem.Memory, count int64, t symmem.DataType, op symmem.ReduceOp,
) error {
	return r.World().AllReduce(r.ctx, m, m, count, t, op, nil)
}

// TestInvalidCollectives makes calls on one rank only. The calls fail before anything is launched,
// so they do not disturb the other rank.
func TestInvalidCollectives(t *testing.T) {
	for _, row := range invalidCollectives {
		t.Run(row.name, func(t *testing.T) {
			runRanks(t, 2, symmem.Options{Check: symmem.CheckOff}, func(r *rank) {
				p := r.pool()
				b := r.window(p, 4096)
				if r.Rank() == 1 {
					r.wantErr(row.call(r, p, b.Memory()), row.want)
				}

				r.checkSum(r.World(), b)
			})
		})
	}
}

func TestBufferOfOtherRuntimeIsForeign(t *testing.T) {
	runtimes := openRanks(t, 2, symmem.Options{})
	p, err := runtimes[0].NewPool(symmem.PoolOptions{})
	if err != nil {
		t.Fatal(err)
	}

	b, err := p.Alloc(512)
	if err != nil {
		t.Fatal(err)
	}

	m := b.Memory()
	err = runtimes[1].World().AllReduce(t.Context(), m, m, 1, symmem.Float32, symmem.Sum, nil)
	if !errors.Is(err, symmem.ErrForeign) {
		t.Errorf("got %v, want ErrForeign", err)
	}

	if _, err := p.AllocOn(runtimes[1].DefaultStream(), 512); !errors.Is(err, symmem.ErrInvalid) {
		t.Errorf("AllocOn with another runtime's stream: got %v, want ErrInvalid", err)
	}

	eachRank(runtimes, func(rt *symmem.Runtime) {
		symmem.FreeLive(rt)
		if err := errors.Join(rt.Close(), rt.Close()); err != nil {
			t.Error(err)
		}

		_, poolErr := rt.NewPool(symmem.PoolOptions{})
		_, streamErr := rt.NewStream()
		_, eventErr := rt.NewEvent()
		for i, err := range []error{
			poolErr, streamErr, eventErr, rt.World().Cause(t.Context()), rt.World().Check(t.Context()),
			rt.World().Barrier(t.Context(), nil),
		} {
			if !errors.Is(err, symmem.ErrClosed) {
				t.Errorf("call %d on a closed runtime: got %v, want ErrClosed", i, err)
			}
		}
	})
}

func TestExplain(t *testing.T) {
	file := tableOf(t, "4KiB")
	runRanks(t, 2, symmem.Options{Tuning: file}, func(r *rank) {
		p := r.pool()
		b, foreign := r.alloc(p, 4096), r.unregistered(4096)
		explain := func(op symmem.Operation, send, recv symmem.Memory) string {
			e, err := r.World().Explain(op, send, recv, 512, symmem.Float32)
			r.ok(err)
			return withoutDirect(e.String())
		}
		m := b.Memory()
		got := []string{explain(symmem.OpAllReduce, m, m), explain(symmem.OpAllReduce, m, foreign)}
		r.checkSum(r.World(), b)
		got = append(got, explain(symmem.OpAllReduce, m, m), explain(symmem.OpAllReduce, m, foreign),
			explain(symmem.OpAllReduce, foreign, m), explain(symmem.OpSend, m, m))
		r.alloc(p, 8*mib)
		got = append(got, explain(symmem.OpAllReduce, m, m))
		table := "and the table " + file + " of box says window up to 4KiB for AllReduce on 2 ranks"
		want := []string{
			"AllReduce: window path, after registering: " +
				"both buffers belong to pools that the group can register, " + table,
			"AllReduce: plain path, after registering: the send buffer is in no window of the group",
			"AllReduce: window path: both buffers lie in windows of the group, " + table,
			"AllReduce: plain path: the receive buffer is in no window of the group",
			"AllReduce: plain path: the send buffer is in no window of the group",
			"Send: plain path: the operation works without windows",
			"AllReduce: window path, after registering: " +
				"both buffers lie in windows of the group, " + table,
		}
		if !slices.Equal(got, want) {
			r.failf("got  %s\nwant %s", join(got), join(want))
		}

		_, err := r.World().Explain(symmem.OpAllReduce, m, m, 4096, symmem.Float32)
		r.wantErr(err, symmem.ErrOutOfRange)
		if s := fmt.Sprint(symmem.OpBarrier); s != "Barrier" {
			r.failf("fmt.Sprint(OpBarrier) = %q, want Barrier", s)
		}
	})
}
