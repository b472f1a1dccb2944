package random

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

// calls makes and checks the calls of a round. All ranks make the same random choices.
type calls struct {
	env     *environment
	choices *choices
	buffers *buffers
	groups  *groups
	tally   *Tally
	round   int // number of the round
}

// operations lists the operations that drawCall draws. An operation that is listed several times
// is drawn more often.
var operations = []symmem.Operation{
	symmem.OpAllReduce, symmem.OpAllReduce, symmem.OpAllReduce, symmem.OpAllGather,
	symmem.OpAllGather, symmem.OpReduceScatter, symmem.OpReduceScatter, symmem.OpBroadcast,
	symmem.OpReduce, symmem.OpAllToAll, symmem.OpSend, symmem.OpAllGatherV,
	symmem.OpReduceScatterV, symmem.OpGather, symmem.OpScatter,
}

// drawCall draws a call for the group at an index. Its data fit into buffers of capacity bytes.
func (cs *calls) drawCall(group int, capacity int64) *testCall {
	call := &testCall{Transfer: workload.Transfer{
		Pattern: workload.Pattern{
			Operation: choose(cs.choices, operations),
			DataType:  choose(cs.choices, workload.DataTypes()),
			Ranks:     cs.env.rt.Size(),
		},
		Group: cs.groups.all[group],
	}}
	call.ReduceOp = choose(cs.choices, workload.Reductions(call.DataType))
	call.Tag = cs.choices.Uint64()
	// All ranks must draw the same operation, and messages between machines are not supported.
	if call.Operation == symmem.OpSend && cs.env.machines() > 1 {
		call.Operation = symmem.OpAllReduce
	}
	root := cs.choices.IntN(cs.env.rt.Size())
	// All ranks must draw the same count, but their groups at this index may have different sizes.
	// Use the size of the world, which is the largest.
	maxCount := capacity / int64(call.DataType.Size()*cs.env.rt.Size())
	call.Count = max(1, int64(math.Exp(cs.choices.Float64()*math.Log(float64(maxCount)))))
	if cs.choices.isOneIn(3) {
		call.Count = maxCount
	}
	if call.Group != nil {
		call.Ranks = call.Group.Size()
	}
	call.Root = root % call.Ranks
	return call
}

func (cs *calls) runCollective(ctx context.Context) error {
	call, err := cs.drawCallOnBuffers(cs.groups.drawIndex(), cs.buffers.drawBuffers(2))
	if err != nil || call == nil {
		return err
	}
	cs.drawStreams(call)
	return cs.runAndCheck(ctx, call)
}

// drawCallOnBuffers draws a call for the group at an index, and its ranges in two buffers. It
// returns nil if twoBuffers is nil.
func (cs *calls) drawCallOnBuffers(group int, twoBuffers []liveBuffer) (*testCall, error) {
	if twoBuffers == nil {
		return nil, nil
	}
	capacity := min(twoBuffers[0].bytes, twoBuffers[1].bytes)
	call := cs.drawCall(group, capacity)
	var ranges [2]symmem.Memory
	for i, b := range twoBuffers {
		memory, err := b.memory()
		if err != nil {
			return nil, err
		}
		if ranges[i], err = cs.drawRange(call, memory); err != nil {
			return nil, err
		}
	}
	call.input = twoBuffers[0].buffer
	if call.Operation.HasInPlace() && cs.choices.isOneIn(2) {
		ranges[1] = ranges[0]
	}
	return call, call.Place(ranges[0], ranges[1])
}

func (cs *calls) drawStreams(call *testCall) {
	call.inputStream = choose(cs.choices, cs.env.streams)
	call.stream = choose(cs.choices, cs.env.streams)
}

// drawRange draws an offset and returns the memory after it, with space for the data of a call.
func (cs *calls) drawRange(call *testCall, memory symmem.Memory) (symmem.Memory, error) {
	size := int64(call.DataType.Size())
	unusedElements := (memory.Bytes() - call.Count*size*int64(cs.env.rt.Size())) / size
	offset := int64(0)
	if unusedElements > 0 && !cs.choices.isOneIn(2) {
		offset = cs.choices.Int64N(unusedElements+1) * size
	}
	return memory.Slice(offset, memory.Bytes()-offset)
}

const maxConcurrentCalls = 4

// runConcurrently queues several calls, frees some of their buffers, waits for the calls and
// checks them.
func (cs *calls) runConcurrently(ctx context.Context) error {
	const buffersPerCall = 2
	callCount := 1 + cs.choices.IntN(maxConcurrentCalls)
	drawnBuffers := cs.buffers.drawBuffers(buffersPerCall * callCount)
	var queued []*testCall
	for i := 0; i < len(drawnBuffers); i += buffersPerCall {
		call, err := cs.drawCallOnBuffers(cs.groups.drawIndex(), drawnBuffers[i:i+buffersPerCall])
		if err != nil {
			return err
		}
		cs.drawStreams(call)
		if err := cs.queue(ctx, call); err != nil {
			return err
		}
		queued = append(queued, call)
	}
	for _, b := range drawnBuffers {
		if cs.choices.isOneIn(3) {
			isSame := func(other liveBuffer) bool { return other.buffer == b.buffer }
			if err := cs.buffers.freeAt(slices.IndexFunc(cs.buffers.live, isSame)); err != nil {
				return err
			}
		}
	}
	if err := cs.env.synchronize(ctx); err != nil {
		return err
	}
	for _, call := range queued {
		cs.checkOutput(call, "in a burst, ")
	}
	return nil
}

// queue queues the input of a call, the call, and a copy of its output.
func (cs *calls) queue(ctx context.Context, call *testCall) error {
	if err := call.Fill(call.inputStream); err != nil {
		return fmt.Errorf("writing the input: %w", err)
	}
	if call.inputStream != call.stream {
		inputWritten := cs.env.events[call.inputStream.Number()%len(cs.env.events)]
		recordErr := call.inputStream.Record(inputWritten)
		if err := errors.Join(recordErr, call.stream.Wait(inputWritten)); err != nil {
			return err
		}
	}
	// Ranks outside the group do not make the call, but must not reuse its buffer too early.
	if err := call.input.UseOn(call.stream); err != nil {
		return err
	}
	if err := call.launch(ctx); err != nil {
		return fmt.Errorf("%v: %w", call.describe(), err)
	}
	if err := call.Read(call.stream); err != nil {
		return fmt.Errorf("reading the output: %w", err)
	}
	return nil
}

// checkOutput counts a completed call, and adds a finding if its output is wrong. The text of the
// finding contains prefix, which states how the call was made.
func (cs *calls) checkOutput(call *testCall, prefix string) {
	cs.tally.Calls++
	if call.want == nil {
		return
	}
	cs.tally.Bytes += int64(len(call.want))
	d := call.Compare(call.Got, call.want)
	if d.Wrong == 0 {
		return
	}
	cs.tally.Wrong += d.Wrong
	cs.tally.addFinding(fmt.Sprintf("round %d, rank %d, %s%s: %d of %d elements are wrong, the first "+
		"at index %d: %v instead of %v", cs.round, cs.env.rt.Rank(), prefix, call.describe(), d.Wrong,
		len(call.want)/call.DataType.Size(), d.First, d.Got, d.Want))
}

func (cs *calls) runAndCheck(ctx context.Context, call *testCall) error {
	if err := cs.queue(ctx, call); err != nil {
		return err
	}
	if err := call.stream.Synchronize(ctx); err != nil {
		return fmt.Errorf("%v: %w", call.describe(), err)
	}
	cs.checkOutput(call, "")
	return nil
}

func (cs *calls) allReduce(
	ctx context.Context, g *symmem.Group, s *symmem.Stream, b symmem.Buffer, bytes int64, tag uint64,
) error {
	call := newAllReduce(g, s, bytes, tag)
	call.input = b
	if err := call.Place(b.Memory(), b.Memory()); err != nil {
		return err
	}
	return cs.runAndCheck(ctx, call)
}

func newAllReduce(g *symmem.Group, s *symmem.Stream, bytes int64, tag uint64) *testCall {
	pattern := workload.Pattern{
		Operation: symmem.OpAllReduce, DataType: symmem.Float32, ReduceOp: symmem.Sum,
		Count: bytes / 4, Ranks: g.Size(), Tag: tag,
	}
	return &testCall{
		Transfer: workload.Transfer{Pattern: pattern, Group: g}, inputStream: s, stream: s,
	}
}
