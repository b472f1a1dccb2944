package symmem_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"symmem"
)

// rowsCase describes a gather of several tensors and a reduce-scatter of one tensor. Rank r has
// counts[r] rows in each tensor.
type rowsCase struct {
	*rank
	draw   *rand.Rand // generates the same numbers on all ranks
	counts []int64
	// pools holds the pools from which memory is drawn. Only the second pool is registered, so its
	// buffers have the same size on all ranks.
	pools [2]*symmem.Pool
}

// tensor holds one tensor of a gather, as bytes.
type tensor struct {
	send, recv symmem.Memory
	width      int64 // bytes per row
	want       []uint8
}

// dataTypes lists the types of the tensors of a gather, each with a different size.
var dataTypes = []symmem.DataType{
	symmem.Uint8, symmem.BFloat16, symmem.Int32, symmem.Float32, symmem.Int64,
}

func (c *rowsCase) newTensor(t symmem.DataType, maxElements int64) tensor {
	x := tensor{width: (1 + c.draw.Int64N(maxElements)) * int64(t.Size())}
	pool, inPlace := c.pools[c.draw.IntN(2)], c.draw.IntN(3) == 0
	local, offset := []uint8(nil), int64(0)
	for r, n := range c.counts {
		part := make([]uint8, n*x.width)
		for i := range part {
			part[i] = uint8(c.draw.Uint32())
		}

		if r == c.Rank() {
			local, offset = part, int64(len(x.want))
		}

		x.want = append(x.want, part...)
	}

	x.recv = c.memory(pool, make([]uint8, len(x.want)))
	if inPlace && len(local) > 0 {
		var err error
		x.send, err = x.recv.Slice(offset, int64(len(local)))
		c.ok(err)
		write(c.rank, x.send, local)
	} else {
		x.send = c.memory(c.pools[0], local)
	}

	return x
}

// memory returns memory of a pool that contains the given bytes.
func (c *rowsCase) memory(p *symmem.Pool, bytes []uint8) symmem.Memory {
	if len(bytes) == 0 {
		return symmem.Memory{}
	}

	m, err := c.alloc(p, int64(len(bytes))).Memory().Slice(0, int64(len(bytes)))
	c.ok(err)
	write(c.rank, m, bytes)
	return m
}

func (c *rowsCase) gather(tensors int, maxElements int64) (call symmem.Call, check func()) {
	var list []symmem.Call
	var all []tensor
	for range tensors {
		t := dataTypes[c.draw.IntN(len(dataTypes))]
		x := c.newTensor(t, maxElements)
		counts := slices.Clone(c.counts)
		for r := range counts {
			counts[r] *= x.width / int64(t.Size())
		}

		all = append(all, x)
		list = append(list, symmem.Call{
			Operation: symmem.OpAllGatherV, Type: t, Send: x.send, Recv: x.recv,
			Splits: &symmem.Splits{RecvCounts: counts}, Path: symmem.PathDirect,
		})
	}

	call = list[0]
	call.More = list[1:]
	return call, func() {
		for i, x := range all {
			if len(x.want) == 0 {
				continue
			}

			if got := read[uint8](c.rank, x.recv); !slices.Equal(got, x.want) {
				c.failf("tensor %d of %d, rows %v of %d bytes: wrong bytes from %d on", i, tensors,
					c.counts, x.width, firstDifference(got, x.want))
			}
		}
	}
}

func firstDifference(a, b []uint8) int {
	for i := range a {
		if i >= len(b) || a[i] != b[i] {
			return i
		}
	}

	return len(a)
}

func (c *rowsCase) scatter(maxElements int64) (call symmem.Call, check func()) {
	width, pool := 1+c.draw.Int64N(maxElements), c.pools[c.draw.IntN(2)]
	u := unevenCall{rank: c.rank, pool: pool, counts: slices.Clone(c.counts)}
	for r := range u.counts {
		u.counts[r] *= width
	}

	send := u.allocateFilled(u.joinParts(func(dst int) []int32 {
		return u.part(c.Rank(), dst, u.counts[dst])
	}))
	u.pool = c.pools[0]
	recv := u.allocateFilled(make([]int32, u.counts[c.Rank()]))
	want := make([]int32, u.counts[c.Rank()])
	for src := range u.counts {
		for i, v := range u.part(src, c.Rank(), int64(len(want))) {
			want[i] += v
		}
	}

	call = symmem.Call{
		Operation: symmem.OpReduceScatterV, Type: symmem.Int32, Op: symmem.Sum, Send: send, Recv: recv,
		Splits: &symmem.Splits{SendCounts: u.counts}, Path: symmem.PathDirect,
	}
	return call, func() { u.check("ReduceScatterV", recv, want) }
}

func runRows(t *testing.T, test func(c *rowsCase)) {
	seed := rand.Uint64()
	for _, ranks := range []int{1, 2, 3, 4, 8} {
		if ranks > 4 && os.Getenv(backendVariable) != "" && testing.Short() {
			continue
		}

		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			t.Logf("seed %d", seed)
			runRanks(t, ranks, symmem.Options{}, func(r *rank) {
				c := &rowsCase{rank: r, draw: rand.New(rand.NewPCG(seed, uint64(ranks)))}
				c.counts = make([]int64, ranks)
				options := symmem.PoolOptions{FirstSegment: 32 * mib}
				c.pools[0] = r.poolWith(options)
				options.Domain = r.World()
				c.pools[1] = r.poolWith(options)
				r.alloc(c.pools[1], 1024)
				r.ok(c.pools[1].Register(r.ctx, r.World()))
				test(c)
			})
		})
	}
}

// drawCounts draws the number of rows of each rank, which is often 0.
func (c *rowsCase) drawCounts(maxRows int64) {
	for r := range c.counts {
		if c.counts[r] = 0; c.draw.IntN(3) > 0 {
			c.counts[r] = c.draw.Int64N(maxRows)
		}
	}
}

// TestRows makes gathers of several tensors and reduce-scatters with random numbers of rows, on
// memory inside and outside windows, and compares the results with a reference.
func TestRows(t *testing.T) {
	runRows(t, func(c *rowsCase) {
		for i := range 12 {
			c.drawCounts([]int64{3, 40, 200}[i%3])
			call, check := c.gather(1+c.draw.IntN(10), 300)
			c.ok(c.Interop().Do(c.ctx, c.World(), call, nil))
			check()
			call, check = c.scatter(300)
			c.ok(c.Interop().Do(c.ctx, c.World(), call, nil))
			check()
		}
	})
}

// TestLargeRows makes calls that do not fit into exchange memory.
func TestLargeRows(t *testing.T) {
	runRows(t, func(c *rowsCase) {
		c.drawCounts(100)
		c.counts[0] = 100
		call, check := c.gather(2, 5000)
		c.ok(c.Interop().Do(c.ctx, c.World(), call, nil))
		check()
		call, check = c.scatter(20000)
		c.ok(c.Interop().Do(c.ctx, c.World(), call, nil))
		check()
	})
}

func TestCapturedRows(t *testing.T) {
	runRows(t, func(c *rowsCase) {
		c.drawCounts(50)
		gather, checkGather := c.gather(4, 300)
		scatter, checkScatter := c.scatter(300)
		c.ok(c.DefaultStream().BeginCapture())
		c.ok(c.Interop().Do(c.ctx, c.World(), gather, nil))
		c.ok(c.Interop().Do(c.ctx, c.World(), scatter, nil))
		g, err := c.DefaultStream().EndCapture()
		c.ok(err)
		for range 3 {
			c.ok(g.Launch(c.DefaultStream()))
			c.synchronize()
			checkGather()
			checkScatter()
		}

		c.ok(g.Close())
	})
}

// TestRowsErrorNamesMissingRank makes a gather on all ranks but the last. On GPUs, the other ranks
// must find poison in place of the last rank's rows.
func TestRowsErrorNamesMissingRank(t *testing.T) {
	ready, done := newGate(3), newGate(3)
	runRanks(t, 3, symmem.Options{}, func(r *rank) {
		g, err := r.Join(r.ctx, "late", r.World().Ranks())
		r.ok(err)
		r.ok(g.SetTimeout(time.Second))
		pool := r.poolWith(symmem.PoolOptions{FirstSegment: 4 * mib})
		c := &rowsCase{rank: r, draw: rand.New(rand.NewPCG(1, 1)), counts: []int64{3, 4, 5}}
		c.pools = [2]*symmem.Pool{pool, pool}
		call, _ := c.gather(3, 20)
		ready.wait(r)
		if r.Rank() < 2 {
			err := r.Interop().Do(r.ctx, g, call, nil)
			if err == nil {
				err = r.DefaultStream().Synchronize(r.ctx)
			}

			r.wantTimeout(err, 2)
		}

		done.wait(r)
		if r.Rank() < 2 && os.Getenv(backendVariable) != "" {
			checkPoison(c, call)
		}

		r.ok(r.World().Barrier(r.ctx, nil)) // the CUDA context is still usable
		r.synchronize()
	})
}

// checkPoison checks that each output of a gather ends with poison, in place of the last rank's
// rows.
func checkPoison(c *rowsCase, call symmem.Call) {
	for i, one := range append([]symmem.Call{call}, call.More...) {
		got := read[uint8](c.rank, one.Recv)
		if last := got[len(got)-8:]; !slices.Equal(last, slices.Repeat([]uint8{0xff}, 8)) {
			c.failf("tensor %d ends with %v, want poison", i, last)
		}
	}
}

func TestUnevenSumsMatchAllReduceBitwise(t *testing.T) {
	runRows(t, func(c *rowsCase) {
		for _, dataType := range []symmem.DataType{symmem.Float32, symmem.Float16, symmem.BFloat16} {
			for _, op := range []symmem.ReduceOp{symmem.Sum, symmem.Avg, symmem.Max} {
				for _, maxRows := range []int64{7, 3000, 300_000} {
					c.compareSums(dataType, op, maxRows)
				}
			}
		}
	})
}

// compareSums compares a reduce-scatter of random elements with an all-reduce bit by bit.
func (c *rowsCase) compareSums(t symmem.DataType, op symmem.ReduceOp, maxRows int64) {
	c.drawCounts(maxRows)
	var all, preceding int64
	for r, n := range c.counts {
		if all += n; r < c.Rank() {
			preceding += n
		}
	}

	if all == 0 {
		return
	}

	size := int64(t.Size())
	bytes := make([]uint8, all*size)
	random := rand.New(rand.NewPCG(uint64(all), uint64(c.Rank())))
	for i := range bytes {
		if bytes[i] = uint8(random.Uint32()); i%int(size) == int(size)-1 {
			bytes[i] = bytes[i]&0x83 | 0x38 // finite, near 1
		}
	}

	send := c.memory(c.pools[c.draw.IntN(2)], bytes)
	ownCount := c.counts[c.Rank()]
	recv := c.memory(c.pools[0], make([]uint8, ownCount*size))
	sum := c.memory(c.pools[0], make([]uint8, len(bytes)))
	g := c.World()
	c.ok(g.SetPath(c.ctx, symmem.PathDirect))
	c.ok(g.ReduceScatterV(c.ctx, send, recv, c.counts, t, op, nil))
	c.ok(g.AllReduce(c.ctx, send, sum, all, t, op, nil))
	c.synchronize()
	if ownCount == 0 {
		return
	}

	got, want := read[uint8](c.rank, recv), read[uint8](c.rank, sum)[preceding*size:][:ownCount*size]
	if !slices.Equal(got, want) {
		c.failf("%v of %v, counts %v: element %d differs from AllReduce's", op, t, c.counts,
			int64(firstDifference(got, want))/size)
	}
}

// TestDifferentRowsDiverge gathers a list on two ranks, one of which expects an additional row.
func TestDifferentRowsDiverge(t *testing.T) {
	runRanks(t, 2, symmem.Options{Check: symmem.CheckEvery}, func(r *rank) {
		c := &rowsCase{rank: r, draw: rand.New(rand.NewPCG(1, 1)), counts: []int64{3, 4}}
		pool := r.poolWith(symmem.PoolOptions{FirstSegment: 4 * mib})
		c.pools = [2]*symmem.Pool{pool, pool}
		c.counts[1] += int64(r.Rank())
		call, _ := c.gather(3, 20)
		err := c.Interop().Do(c.ctx, c.World(), call, nil)
		if err == nil {
			err = c.DefaultStream().Synchronize(c.ctx)
		}

		if e := r.wantDivergence(err); !strings.Contains(e.Error(), "AllGatherV") {
			r.failf("got %v, want an error that names AllGatherV", err)
		}
	})
}
