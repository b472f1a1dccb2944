package random

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
	"symmem/internal/reduce"
)

// operations are what calls are drawn from, by weight.
var operations = []symmem.Operation{
	symmem.OpAllReduce, symmem.OpAllReduce, symmem.OpAllReduce, symmem.OpAllGather,
	symmem.OpAllGather, symmem.OpReduceScatter, symmem.OpReduceScatter, symmem.OpBroadcast,
	symmem.OpReduce, symmem.OpAllToAll, symmem.OpSend,
}

// drawCall draws a call on two buffers of so many bytes, in group number at.
func (r *round) drawCall(at int, capacity int64) *exchange {
	e := &exchange{Call: workload.Call{
		Pattern: workload.Pattern{
			Operation: one(r, operations), DataType: one(r, reduce.DataTypes()), Ranks: r.rt.Size(),
		},
		Group: r.groups[at],
	}}
	e.ReduceOp, e.Tag = one(r, workload.Reductions(e.DataType)), r.draws.Uint64()
	// There are no messages between machines. A group of one machine has them, but all ranks draw
	// alike.
	if e.Operation == symmem.OpSend && r.machines() > 1 {
		e.Operation = symmem.OpAllReduce
	}
	root := r.draws.IntN(r.rt.Size())
	// Groups may have other sizes on other ranks, so what is drawn fits the world.
	longest := capacity / int64(e.DataType.Size()*r.rt.Size())
	e.Count = max(1, int64(math.Exp(r.draws.Float64()*math.Log(float64(longest)))))
	if r.chance(3) {
		e.Count = longest
	}
	if e.Group != nil {
		e.Ranks = e.Group.Size()
	}
	e.Root = root % e.Ranks
	return e
}

// collective runs one checked call on live buffers.
func (r *round) collective(ctx context.Context) error {
	e, err := r.drawExchange(r.draws.IntN(len(r.groups)), r.pick(2))
	if err != nil || e == nil {
		return err
	}
	e.from, e.on = one(r, r.streams), one(r, r.streams)
	return r.checked(ctx, e)
}

// pick draws so many different live buffers, or none if there are fewer.
func (r *round) pick(n int) []holding {
	order := r.draws.Perm(len(r.live))
	if len(order) < n {
		return nil
	}
	var picked []holding
	for _, i := range order[:n] {
		picked = append(picked, r.live[i])
	}
	return picked
}

// drawExchange draws a call of a group on two buffers, at drawn places in them.
func (r *round) drawExchange(group int, on []holding) (*exchange, error) {
	if on == nil {
		return nil, nil
	}
	capacity := min(on[0].bytes, on[1].bytes)
	e := r.drawCall(group, capacity)
	var parts [2]symmem.Memory
	for i, h := range on {
		whole, err := h.memory()
		if err != nil {
			return nil, err
		}
		if parts[i], err = r.within(e, whole); err != nil {
			return nil, err
		}
	}
	e.sender = on[0].buffer
	if e.Operation.HasInPlace() && r.chance(2) {
		parts[1] = parts[0]
	}
	return e, e.Place(parts[0], parts[1])
}

// within draws where in a buffer the memory of a call begins: often not at its start.
func (r *round) within(e *exchange, whole symmem.Memory) (symmem.Memory, error) {
	size := int64(e.DataType.Size())
	slack := (whole.Bytes() - e.Count*size*int64(r.rt.Size())) / size
	from := int64(0)
	if slack > 0 && !r.chance(2) {
		from = r.draws.Int64N(slack+1) * size
	}
	return whole.Slice(from, whole.Bytes()-from)
}

// burstCalls is how many calls are queued at once at most.
const burstCalls = 4

// burst queues several calls on drawn streams before it waits for any, and frees some of the
// buffers meanwhile.
func (r *round) burst(ctx context.Context) error {
	on := r.pick(2 * (1 + r.draws.IntN(burstCalls)))
	var queued []*exchange
	for i := 0; i < len(on); i += 2 {
		e, err := r.drawExchange(r.draws.IntN(len(r.groups)), on[i:i+2])
		if err != nil {
			return err
		}
		e.from, e.on = one(r, r.streams), one(r, r.streams)
		if err := r.queue(ctx, e); err != nil {
			return err
		}
		queued = append(queued, e)
	}
	for _, h := range on {
		if r.chance(3) {
			same := func(other holding) bool { return other.buffer == h.buffer }
			if err := r.drop(slices.IndexFunc(r.live, same)); err != nil {
				return err
			}
		}
	}
	if err := r.synchronize(ctx); err != nil {
		return err
	}
	for _, e := range queued {
		r.verify(e, "at once with others, ")
	}
	return nil
}

// queue queues everything. If the streams differ, an event orders them.
func (r *round) queue(ctx context.Context, e *exchange) error {
	if err := e.Fill(e.from); err != nil {
		return fmt.Errorf("writing the input: %w", err)
	}
	if e.from != e.on {
		mark := r.events[e.from.Number()%len(r.events)]
		if err := errors.Join(e.from.Record(mark), e.on.Wait(mark)); err != nil {
			return err
		}
	}
	// Only members make the call, but its use of the input is noted on every rank: otherwise the
	// buffer would come back earlier on some.
	if err := e.sender.UseOn(e.on); err != nil {
		return err
	}
	if err := e.launch(ctx); err != nil {
		return fmt.Errorf("%v: %w", e.describe(), err)
	}
	if err := e.Read(e.on); err != nil {
		return fmt.Errorf("reading the output: %w", err)
	}
	return nil
}

// verify looks at the output of a call that is done.
func (r *round) verify(e *exchange, how string) {
	r.tally.Calls++
	if e.want == nil {
		return
	}
	r.tally.Bytes += int64(len(e.want))
	d := e.Compare(e.Got, e.want)
	if d.Wrong == 0 {
		return
	}
	r.tally.Wrong += d.Wrong
	r.tally.note(fmt.Sprintf("round %d, rank %d, %s%s: %d of %d elements are wrong, the first is %d: "+
		"%v instead of %v", r.number, r.rt.Rank(), how, e.describe(), d.Wrong,
		len(e.want)/e.DataType.Size(), d.First, d.Got, d.Want))
}

// checked runs one call from the input to the check.
func (r *round) checked(ctx context.Context, e *exchange) error {
	if err := r.queue(ctx, e); err != nil {
		return err
	}
	if err := e.on.Synchronize(ctx); err != nil {
		return fmt.Errorf("%v: %w", e.describe(), err)
	}
	r.verify(e, "")
	return nil
}
