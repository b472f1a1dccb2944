package nccl

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/stream"
)

// Calls of a group run in launch order, even on different streams. Each call waits for earlier
// calls, but not for other work on their streams. Otherwise, this example would deadlock:
//
//	rank 0, first stream:  call 1, Recv
//	rank 0, second stream: call 2 (waits for call 1, but not for the Recv)
//	rank 1:                call 1, call 2, Send

// Calls before and after an empty AllToAllV stay in order, although it launches nothing.
func TestEmptyCallKeepsTheOrder(t *testing.T) {
	g := newAdditiveGroup(t, 2, time.Minute)
	g.withSum(smallCount, func(r *testRank, sum *repeatedSum) error {
		others, err := r.newStreams(2)
		if err != nil {
			return err
		}

		if err := r.warmUp([]*repeatedSum{sum}); err != nil {
			return err
		}

		const noElements = 0
		emptyPlan, err := prepare(r.group, r.ringAllToAllV(sum, noElements, driver.PathPlain))
		if err != nil {
			return err
		}

		if err := r.check(g, sum, r.stream); err != nil {
			return err
		}

		ncclStream := r.stream.(*stream.Stream)
		emptyStream := others[0]
		directStream := others[1]
		first := func() error {
			if err := sum.launch(r.group, ncclStream, driver.PathPlain); err != nil {
				return err
			}

			return r.group.Launch(emptyStream, emptyPlan)
		}
		second := func() error { return sum.launch(r.group, directStream, driver.PathDirect) }
		// checkOrder blocks ncclStream until both functions have returned.
		err = r.checkOrder(ncclStream.CUDA, first, directStream.CUDA, second)
		return errors.Join(err, r.check(g, sum, ncclStream, emptyStream, directStream))
	})
}

// Kinds of work that follow call 1 on rank 0 and wait for the message of rank 1.
const (
	waitByRecv         = "a receive"
	waitByEvent        = "a wait"
	waitByReusedMemory = "reused memory"
	waitByHostFunction = "a host function"
	waitByGraph        = "a graph"
)

// More kinds, for streams that another library owns. The owner makes the first stream wait for the
// message without symmem's knowledge. Then symmem queues an event or a fill.
const (
	ownersWaitAndEvent = "a wait of the owner, an event"
	ownersWaitAndFill  = "a wait of the owner, a fill"
)

// Indexes of the streams of a rank.
const (
	firstStream  = iota // for call 1
	secondStream        // for call 2 and the Send
	recvStream          // for the Recv, unless it follows call 1
	streamCount
)

func isOwnersWait(kind string) bool {
	return kind == ownersWaitAndEvent || kind == ownersWaitAndFill
}

// Call 2 would time out if it waited for the work that follows call 1.
func TestCallDoesNotWaitForWorkQueuedAfterEarlierCall(t *testing.T) {
	for _, adopted := range []bool{false, true} {
		kinds := []string{
			waitByRecv, waitByEvent, waitByReusedMemory, waitByHostFunction, waitByGraph,
		}
		if adopted {
			kinds = append(kinds, ownersWaitAndEvent, ownersWaitAndFill)
		}

		for _, kind := range kinds {
			t.Run(fmt.Sprintf("%s, adopted: %v", kind, adopted), func(t *testing.T) {
				g := newAdditiveGroup(t, 2, 10*time.Second)
				g.withSum(smallCount, func(r *testRank, sum *repeatedSum) error {
					return r.launchAroundMessage(g, sum, kind, adopted)
				})
			})
		}
	}
}

// launchAroundMessage launches both calls. Work of the given kind follows call 1 on rank 0, and the
// Send follows call 2 on rank 1.
func (r *testRank) launchAroundMessage(
	g *testGroup, sum *repeatedSum, kind string, adopted bool,
) error {
	buffer, err := r.mapRegion(messageBytes)
	if err != nil {
		return err
	}

	foreign, err := r.newForeignStreams(streamCount)
	if err != nil {
		return err
	}

	streams, err := r.newStreams(streamCount)
	if err != nil {
		return err
	}

	if adopted {
		streams = nil
		for _, f := range foreign {
			streams = append(streams, f.stream)
		}
	}

	message, err := r.prepareMessage(buffer, kind, streams)
	if err != nil {
		return err
	}

	err = sum.launch(r.group, streams[firstStream], driver.PathDirect)
	if r.rank == 0 {
		arrived := r.device.streams.NewEvent()
		err = errors.Join(err, message.launch())
		err = errors.Join(err, message.stream.Record(arrived))
		if isOwnersWait(kind) {
			err = errors.Join(err, join(foreign[firstStream], foreign[recvStream]))
		}

		err = errors.Join(err, r.queueWait(kind, streams[firstStream], message, arrived))
	}

	err = errors.Join(err, sum.launch(r.group, streams[secondStream], driver.PathDirect))
	if r.rank == 1 {
		err = errors.Join(err, message.launch())
	}

	for _, s := range streams {
		err = errors.Join(err, s.Synchronize(g.t.Context()))
	}

	err = errors.Join(err, r.check(g, sum))
	return errors.Join(err, finish(foreign...))
}

// preparedMessage is a Recv on rank 0, or the matching Send on rank 1.
type preparedMessage struct {
	launch func() error // on stream
	stream driver.Stream
	buffer *region
}

// prepareMessage prepares a message. For waitByGraph, launching it replays a captured graph.
func (r *testRank) prepareMessage(
	buffer *region, kind string, streams []*stream.Stream,
) (*preparedMessage, error) {
	call := driver.Call{
		Operation: driver.Send, DataType: driver.Uint8, Count: messageBytes, Root: 1 - r.rank,
		Send: buffer.segment.Address(), Recv: buffer.segment.Address(),
	}
	messageStream := streams[secondStream]
	if r.rank == 0 {
		call.Operation = driver.Recv
		messageStream = streams[recvStream]
		if kind == waitByRecv || kind == waitByGraph {
			messageStream = streams[firstStream]
		}
	}

	plan, err := prepare(r.group, call)
	if err != nil {
		return nil, err
	}

	message := &preparedMessage{stream: messageStream, buffer: buffer}
	message.launch = func() error { return r.group.Launch(messageStream, plan) }
	if kind == waitByGraph {
		graph, err := r.captureWork(messageStream, message.launch)
		if err != nil {
			return nil, err
		}

		message.launch = func() error { return graph.Launch(messageStream) }
	}

	return message, nil
}

// queueWait makes s wait for the message by work of the given kind.
func (r *testRank) queueWait(
	kind string, s driver.Stream, message *preparedMessage, arrived driver.Event,
) error {
	switch kind {
	case waitByRecv, waitByGraph:
		return nil // s has the Recv
	case waitByEvent:
		return s.Wait(arrived)
	case waitByReusedMemory:
		return s.WaitIgnoringErrors(arrived)
	case waitByHostFunction:
		hasArrived := make(chan struct{})
		if err := message.stream.Host(func() { close(hasArrived) }); err != nil {
			return err
		}

		return s.Host(func() { <-hasArrived })
	case ownersWaitAndEvent: // the owner has already made s wait
		return s.Record(r.device.streams.NewEvent())
	case ownersWaitAndFill:
		return s.Fill(message.buffer.segment.Address(), 0, messageBytes)
	default:
		return fmt.Errorf("unknown kind of work: %s", kind)
	}
}
