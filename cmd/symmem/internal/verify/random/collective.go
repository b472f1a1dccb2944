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

// calls makes and checks the collective calls of a round. All ranks make the same random choices.
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

// drawCall draws a call for the group at an index of groups.all. Its data fit into buffers of
// capacity bytes.
func (cs *calls) drawCall(group int, capacity int64) *testCall {
	worldSize := cs.env.rt.Size() // number of all ranks
	call := &testCall{Transfer: workload.Transfer{
		Pattern: workload.Pattern{
			Operation: choose(cs.choices, operations),
			DataType:  choose(cs.choices, workload.DataTypes()),
			Ranks:     worldSize,
		},
		Group: cs.groups.all[group], // nil if this rank is not a member
	}}
	call.ReduceOp = choose(cs.choices, workload.Reductions(call.DataType))
	call.Tag = cs.choices.Uint64()
	// Messages between machines are not supported. The condition is the same on all ranks, because
	// all ranks must draw the same operation, even if their groups differ.
	if call.Operation == symmem.OpSend && cs.env.machines() > 1 {
		call.Operation = symmem.OpAllReduce
	}

	root := cs.choices.IntN(worldSize)
	// All ranks must draw the same count, but their groups at this index may have different sizes.
	// Use the size of the world, which is the largest.
	maxCount := capacity / int64(call.DataType.Size()*worldSize)
	call.Count = cs.drawCount(maxCount)
	if cs.choices.isOneIn(3) {
		call.Count = maxCount
	}

	if call.Group != nil {
		call.Ranks = call.Group.Size()
	}

	call.Root = root % call.Ranks
	return call
}

// drawCount draws a count up to maxCount. Its logarithm is uniform, so that counts of all
// magnitudes are equally likely.
func (cs *calls) drawCount(maxCount int64) int64 {
	logarithm := cs.choices.Float64() * math.Log(float64(maxCount))
	return max(1, int64(math.Exp(logarithm)))
}

// runCollective makes and checks a random call on two live buffers. With fewer live buffers, it
// does nothing.
func (cs *calls) runCollective(ctx context.Context) error {
	group := cs.groups.drawIndex()
	twoBuffers := cs.buffers.drawBuffers(2)
	call, err := cs.drawCallOnBuffers(group, twoBuffers)
	if err != nil || call == nil {
		return err
	}

	cs.drawStreams(call)
	return cs.runAndCheck(ctx, call)
}

// drawCallOnBuffers draws a call for the group at an index of groups.all, and its ranges in two
// buffers. It returns nil if twoBuffers is nil.
func (cs *calls) drawCallOnBuffers(group int, twoBuffers []liveBuffer) (*testCall, error) {
	if twoBuffers == nil {
		return nil, nil
	}

	capacity := min(twoBuffers[0].bytes, twoBuffers[1].bytes)
	call := cs.drawCall(group, capacity)
	input, err := cs.drawRange(call, twoBuffers[0])
	if err != nil {
		return nil, err
	}

	output, err := cs.drawRange(call, twoBuffers[1])
	if err != nil {
		return nil, err
	}

	call.input = twoBuffers[0].buffer
	if call.Operation.HasInPlace() && cs.choices.isOneIn(2) {
		output = input
	}

	if err := call.Place(input, output); err != nil {
		return nil, err
	}

	return call, nil
}

// drawStreams sets the call's streams, which may be the same.
func (cs *calls) drawStreams(call *testCall) {
	call.inputStream = choose(cs.choices, cs.env.streams)
	call.stream = choose(cs.choices, cs.env.streams)
}

// drawRange draws an offset in a buffer, and returns the memory after the offset. The memory has
// space for the data of the call, which are at most call.Count elements for each rank.
func (cs *calls) drawRange(call *testCall, b liveBuffer) (symmem.Memory, error) {
	memory, err := b.memory()
	if err != nil {
		return symmem.Memory{}, err
	}

	elementBytes := int64(call.DataType.Size())
	dataBytes := call.Count * elementBytes * int64(cs.env.rt.Size())
	unusedElements := (memory.Bytes() - dataBytes) / elementBytes
	offset := int64(0)
	if unusedElements > 0 && !cs.choices.isOneIn(2) {
		offset = cs.choices.Int64N(unusedElements+1) * elementBytes
	}

	return memory.Slice(offset, memory.Bytes()-offset)
}

const maxConcurrentCalls = 4

// runConcurrently queues several calls, frees some of their buffers, waits for the calls and
// checks them.
func (cs *calls) runConcurrently(ctx context.Context) error {
	const buffersPerCall = 2
	callCount := 1 + cs.choices.IntN(maxConcurrentCalls)
	drawnBuffers := cs.buffers.drawBuffers(buffersPerCall * callCount) // none if too few are live
	var queued []*testCall
	for twoBuffers := range slices.Chunk(drawnBuffers, buffersPerCall) {
		call, err := cs.drawCallOnBuffers(cs.groups.drawIndex(), twoBuffers)
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
		if !cs.choices.isOneIn(3) {
			continue
		}

		isSame := func(other liveBuffer) bool { return other.buffer == b.buffer }
		index := slices.IndexFunc(cs.buffers.live, isSame) // not -1, because b is live
		if err := cs.buffers.freeAt(index); err != nil {
			return err
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
		// Any event will do, because the wait refers to the last Record before it.
		inputWritten := cs.env.events[call.inputStream.Number()%len(cs.env.events)]
		recordErr := call.inputStream.Record(inputWritten)
		waitErr := call.stream.Wait(inputWritten)
		if err := errors.Join(recordErr, waitErr); err != nil {
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

// runAndCheck queues a call, waits for it and checks its output.
func (cs *calls) runAndCheck(ctx context.Context, call *testCall) error {
	if err := cs.queue(ctx, call); err != nil {
		return err
	}

	if err := call.stream.Synchronize(ctx); err != nil {
		return fmt.Errorf("%v: %w", call.describe(), err)
	}

	const prefix = "" // the call was made in the usual way
	cs.checkOutput(call, prefix)
	return nil
}

// allReduce makes and checks an all-reduce in place in b, with float32 data that depend on tag.
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

// newAllReduce returns an all-reduce of float32 elements. The caller must call its method Place.
func newAllReduce(g *symmem.Group, s *symmem.Stream, bytes int64, tag uint64) *testCall {
	count := bytes / int64(symmem.Float32.Size())
	pattern := workload.Pattern{
		Operation: symmem.OpAllReduce, DataType: symmem.Float32, ReduceOp: symmem.Sum,
		Count: count, Ranks: g.Size(), Tag: tag,
	}
	return &testCall{
		Transfer: workload.Transfer{Pattern: pattern, Group: g}, inputStream: s, stream: s,
	}
}
