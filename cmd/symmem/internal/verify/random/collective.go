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

// Suppose that the world, the group of all ranks, has the ranks 0 to 2. They test an AllGather of
// 10 elements in the group with the index 1, which is an index of groups.all:
//
//   - All ranks draw the same call, because they start with the same random seed. But the index
//     can mean different groups: ranks 0 and 2 have a group of these two, and rank 1 has nil.
//     Draws must thus depend on values that all ranks share: the world's size, not the group's.
//   - Ranks 0 and 2 queue a write of the input, the call, and a copy of the output on streams. They
//     wait, and compare the copy with the expected output. A text about a difference is a finding.
//   - Rank 1, which is outside the group, queues the same work except the call. It must use the
//     buffers like the others, because pools compare the uses of buffers between ranks.

// calls draws, queues and checks the calls of a round.
type calls struct {
	env     *environment
	choices *choices // the same on all ranks
	buffers *buffers // the live buffers: those that are allocated
	groups  *groups
	tally   *Tally // counts the calls and holds the findings
	round   int    // number of the round
}

// operations lists the operations that are drawn. One that is listed twice is drawn twice as often.
var operations = []symmem.Operation{
	symmem.OpAllReduce, symmem.OpAllReduce, symmem.OpAllReduce, symmem.OpAllGather,
	symmem.OpAllGather, symmem.OpReduceScatter, symmem.OpReduceScatter, symmem.OpBroadcast,
	symmem.OpReduce, symmem.OpAllToAll, symmem.OpSend, symmem.OpAllGatherV,
	symmem.OpReduceScatterV, symmem.OpGather, symmem.OpScatter,
}

// drawOperation draws an operation that the world supports.
func (cs *calls) drawOperation() symmem.Operation {
	drawn := choose(cs.choices, operations)
	if drawn == symmem.OpSend && cs.env.machines() > 1 {
		return symmem.OpAllReduce // messages between machines are not supported
	}

	return drawn
}

// drawCount draws a number of elements from 1 to maxCount. One in three is maxCount. The others
// have a uniform logarithm, so that 1 to 10 is as likely as 100 to 1000.
func (cs *calls) drawCount(maxCount int64) int64 {
	logarithm := cs.choices.Float64() * math.Log(float64(maxCount))
	if cs.choices.isOneIn(3) {
		return maxCount
	}

	return max(1, int64(math.Exp(logarithm)))
}

// drawCall draws a call for the group with an index, but not its buffers and streams. The input and
// the output have at most maxBytes each.
func (cs *calls) drawCall(groupIndex int, maxBytes int64) *testCall {
	operation := cs.drawOperation()
	dataType := choose(cs.choices, workload.DataTypes())
	reduceOp := choose(cs.choices, workload.Reductions(dataType))
	tag := cs.choices.Uint64() // selects the values of the input
	worldSize := cs.env.rt.Size()
	drawnRoot := cs.choices.IntN(worldSize)
	// An input or output has at most count elements for each rank.
	maxCount := maxBytes / int64(dataType.Size()*worldSize)
	count := cs.drawCount(maxCount)
	group := cs.groups.all[groupIndex]
	ranks := worldSize // on ranks outside the group
	if group != nil {
		ranks = group.Size()
	}

	pattern := workload.Pattern{
		Operation: operation, DataType: dataType, ReduceOp: reduceOp, Count: count,
		Root: drawnRoot % ranks, Ranks: ranks, Tag: tag,
	}
	return &testCall{Transfer: workload.Transfer{Pattern: pattern, Group: group}}
}

// drawMemory draws memory for an input or output: a buffer from a random offset to its end.
func (cs *calls) drawMemory(call *testCall, b liveBuffer) (symmem.Memory, error) {
	memory, err := b.memory()
	if err != nil {
		return symmem.Memory{}, err
	}

	elementBytes := int64(call.DataType.Size())
	maxDataBytes := call.Count * elementBytes * int64(cs.env.rt.Size()) // Count for each rank
	unusedElements := (memory.Bytes() - maxDataBytes) / elementBytes
	offset := int64(0) // the most frequent offset
	if unusedElements > 0 && !cs.choices.isOneIn(2) {
		offset = cs.choices.Int64N(unusedElements+1) * elementBytes
	}

	return memory.Slice(offset, memory.Bytes()-offset)
}

// drawCallOnBuffers draws a call on a pair of buffers: the first for the input, and the second for
// the output unless the call is in place. It returns nil if pair is nil.
func (cs *calls) drawCallOnBuffers(groupIndex int, pair []liveBuffer) (*testCall, error) {
	if pair == nil {
		return nil, nil
	}

	maxBytes := min(pair[0].bytes, pair[1].bytes)
	call := cs.drawCall(groupIndex, maxBytes)
	input, err := cs.drawMemory(call, pair[0])
	if err != nil {
		return nil, err
	}

	output, err := cs.drawMemory(call, pair[1])
	if err != nil {
		return nil, err
	}

	if call.Operation.HasInPlace() && cs.choices.isOneIn(2) {
		output = input // the call is in place
	}

	call.input = pair[0].buffer
	return call, call.Place(input, output)
}

// drawStreams draws the stream for the input, and the stream for the rest. They may be the same.
func (cs *calls) drawStreams(call *testCall) {
	call.inputStream = choose(cs.choices, cs.env.streams)
	call.stream = choose(cs.choices, cs.env.streams)
}

// waitForInput makes the call's stream wait until the input stream has written the input.
func (cs *calls) waitForInput(call *testCall) error {
	if call.inputStream == call.stream {
		return nil // a stream executes its work in order
	}

	// Calls can share an event, because Wait refers to the last Record before it.
	inputWritten := cs.env.events[call.inputStream.Number()%len(cs.env.events)]
	recordErr := call.inputStream.Record(inputWritten)
	waitErr := call.stream.Wait(inputWritten)
	return errors.Join(recordErr, waitErr)
}

// queue queues the input of a call, the call, and a copy of its output.
func (cs *calls) queue(ctx context.Context, call *testCall) error {
	if err := call.Fill(call.inputStream); err != nil {
		return fmt.Errorf("writing the input: %w", err)
	}

	if err := cs.waitForInput(call); err != nil {
		return err
	}

	// Pools record the uses of the input on all ranks, but only ranks of the group make the call.
	if err := call.input.UseOn(call.stream); err != nil {
		return err
	}

	if err := call.launch(ctx); err != nil { // does nothing on ranks outside the group
		return fmt.Errorf("%v: %w", call.describe(), err)
	}

	if err := call.Read(call.stream); err != nil {
		return fmt.Errorf("reading the output: %w", err)
	}

	return nil
}

// checkOutput counts a completed call, and adds a finding if its output is wrong. In the finding,
// prefix states how the call was made, such as "replayed, ".
func (cs *calls) checkOutput(call *testCall, prefix string) {
	cs.tally.Calls++
	if call.want == nil { // this rank receives no output
		return
	}

	cs.tally.Bytes += int64(len(call.want))
	diff := call.Compare(call.Got, call.want)
	if diff.Wrong == 0 {
		return
	}

	cs.tally.Wrong += diff.Wrong
	cs.tally.addFinding(fmt.Sprintf("round %d, rank %d, %s%s: %d of %d elements are wrong, the first "+
		"at index %d: %v instead of %v", cs.round, cs.env.rt.Rank(), prefix, call.describe(),
		diff.Wrong, len(call.want)/call.DataType.Size(), diff.First, diff.Got, diff.Want))
}

// runAndCheck queues a call, waits for it and checks its output.
func (cs *calls) runAndCheck(ctx context.Context, call *testCall) error {
	if err := cs.queue(ctx, call); err != nil {
		return err
	}

	if err := call.stream.Synchronize(ctx); err != nil {
		return fmt.Errorf("%v: %w", call.describe(), err)
	}

	cs.checkOutput(call, "") // without a prefix, because the call was made in the usual way
	return nil
}

// runCollective runs and checks a random call, unless fewer than two buffers are live.
func (cs *calls) runCollective(ctx context.Context) error {
	groupIndex := cs.groups.drawIndex()
	pair := cs.buffers.drawBuffers(2) // nil if fewer are live
	call, err := cs.drawCallOnBuffers(groupIndex, pair)
	if err != nil || call == nil {
		return err
	}

	cs.drawStreams(call)
	return cs.runAndCheck(ctx, call)
}

// runConcurrently queues several random calls, and checks them only after the last. Meanwhile, it
// frees some of their buffers, which the pools must not reuse before the calls have completed.
func (cs *calls) runConcurrently(ctx context.Context) error {
	const maxCalls, buffersPerCall = 4, 2
	callCount := 1 + cs.choices.IntN(maxCalls)
	drawn := cs.buffers.drawBuffers(buffersPerCall * callCount) // nil if fewer are live
	var queued []*testCall
	for pair := range slices.Chunk(drawn, buffersPerCall) {
		call, err := cs.drawCallOnBuffers(cs.groups.drawIndex(), pair)
		if err != nil {
			return err
		}

		cs.drawStreams(call)
		if err := cs.queue(ctx, call); err != nil {
			return err
		}

		queued = append(queued, call)
	}

	if err := cs.freeSome(drawn); err != nil {
		return err
	}

	if err := cs.env.synchronize(ctx); err != nil {
		return err
	}

	for _, call := range queued {
		cs.checkOutput(call, "in a burst, ")
	}

	return nil
}

// freeSome frees about a third of the given buffers, which must be live.
func (cs *calls) freeSome(drawn []liveBuffer) error {
	for _, b := range drawn {
		if !cs.choices.isOneIn(3) {
			continue
		}

		isSame := func(other liveBuffer) bool { return other.buffer == b.buffer }
		if err := cs.buffers.freeMatching(isSame); err != nil {
			return err
		}
	}

	return nil
}

// allReduce runs and checks an AllReduce in place in b, with float32 data that depend on tag.
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

// newAllReduce returns an AllReduce of float32 elements. The caller must call its method Place.
func newAllReduce(g *symmem.Group, s *symmem.Stream, bytes int64, tag uint64) *testCall {
	count := bytes / int64(symmem.Float32.Size())
	pattern := workload.Pattern{
		Operation: symmem.OpAllReduce, DataType: symmem.Float32, ReduceOp: symmem.Sum,
		Count: count, Ranks: g.Size(), Tag: tag,
	}
	transfer := workload.Transfer{Pattern: pattern, Group: g}
	return &testCall{Transfer: transfer, inputStream: s, stream: s}
}
