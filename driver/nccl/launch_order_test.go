package nccl

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/stream"
)

// Calls of a group run in launch order, even on different streams. But a call must wait only for
// earlier calls, not for other work on their streams, or the ranks deadlock:
//
//	rank 0, stream 0: call 1, Recv
//	rank 0, stream 1: call 2 (must wait for call 1, but not for the Recv)
//	rank 1:           call 1, call 2, Send

// An empty AllToAllV, which makes no NCCL call, between two calls does not break their order.
func TestEmptyCallKeepsTheOrder(t *testing.T) {
	w := newAdditiveGroup(t, 2, time.Minute)
	w.withSum(smallCount, func(m *testRank, p *repeatedSum) error {
		others, err := m.newStreams(2)
		if err != nil {
			return err
		}

		if err := m.warmUp([]*repeatedSum{p}); err != nil {
			return err
		}

		const noElements = 0
		emptyPlan, err := prepare(m.group, m.ringAllToAllV(p, noElements, driver.PathPlain))
		if err != nil {
			return err
		}

		if err := m.check(w, p, m.stream); err != nil {
			return err
		}

		ncclStream := m.stream.(*stream.Stream)
		emptyStream := others[0]
		directStream := others[1]
		first := func() error {
			if err := p.launch(m.group, ncclStream, driver.PathPlain); err != nil {
				return err
			}

			return m.group.Launch(emptyStream, emptyPlan)
		}
		second := func() error { return p.launch(m.group, directStream, driver.PathDirect) }
		// checkOrder unblocks ncclStream after both launches.
		err = m.checkOrder(ncclStream.CUDA, first, directStream.CUDA, second)
		return errors.Join(err, m.check(w, p, ncclStream, emptyStream, directStream))
	})
}

// Work on stream 0 that follows call 1 and waits for the message of rank 1.
const (
	waitByRecv         = "a receive"
	waitByEvent        = "a wait"
	waitByReusedMemory = "reused memory"
	waitByHostFunction = "a host function"
	waitByGraph        = "a graph"
)

// More such work, only for streams adopted from another library, their owner. The owner makes
// stream 0 wait without symmem's knowledge, and then symmem queues an event or a fill.
const (
	ownersWaitAndEvent = "a wait of the owner, an event"
	ownersWaitAndFill  = "a wait of the owner, a fill"
)

func isOwnersWait(kind string) bool {
	return kind == ownersWaitAndEvent || kind == ownersWaitAndFill
}

// Call 2 times out if it waits for the work that follows call 1.
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
				w := newAdditiveGroup(t, 2, 10*time.Second)
				w.withSum(smallCount, func(m *testRank, p *repeatedSum) error {
					return m.launchAroundMessage(w, p, kind, adopted)
				})
			})
		}
	}
}

// launchAroundMessage launches both calls. Work of the given kind follows call 1 on rank 0, and the
// Send follows call 2 on rank 1.
func (m *testRank) launchAroundMessage(
	w *testGroup, p *repeatedSum, kind string, adopted bool,
) error {
	buffer, err := m.mapRegion(messageBytes)
	if err != nil {
		return err
	}

	foreign, err := m.newForeignStreams(3)
	if err != nil {
		return err
	}

	streams, err := m.newStreams(len(foreign))
	if err != nil {
		return err
	}

	if adopted {
		streams = nil
		for _, o := range foreign {
			streams = append(streams, o.stream)
		}
	}

	message, err := m.prepareMessage(buffer, kind, streams)
	if err != nil {
		return err
	}

	err = p.launch(m.group, streams[0], driver.PathDirect)
	if m.rank == 0 {
		arrived := m.device.streams.NewEvent()
		err = errors.Join(err, message.launch())
		err = errors.Join(err, message.stream.Record(arrived))
		if isOwnersWait(kind) { // the Recv is on streams[2]
			err = errors.Join(err, join(foreign[0], foreign[2]))
		}

		err = errors.Join(err, m.queueWait(kind, streams[0], message, arrived))
	}

	err = errors.Join(err, p.launch(m.group, streams[1], driver.PathDirect))
	if m.rank == 1 {
		err = errors.Join(err, message.launch())
	}

	for _, s := range streams {
		err = errors.Join(err, s.Synchronize(w.t.Context()))
	}

	err = errors.Join(err, m.check(w, p))
	return errors.Join(err, finish(foreign...))
}

// preparedMessage is a Recv on rank 0 or the matching Send on rank 1.
type preparedMessage struct {
	launch func() error // on stream
	stream driver.Stream
	buffer *region
}

// prepareMessage prepares the message, captured in a graph for waitByGraph.
func (m *testRank) prepareMessage(
	buffer *region, kind string, streams []*stream.Stream,
) (*preparedMessage, error) {
	call := driver.Call{
		Operation: driver.Send, DataType: driver.Uint8, Count: messageBytes, Root: 1 - m.rank,
		Send: buffer.segment.Address(), Recv: buffer.segment.Address(),
	}
	messageStream := streams[1] // the Send follows call 2
	if m.rank == 0 {
		call.Operation = driver.Recv
		messageStream = streams[2]
		if kind == waitByRecv || kind == waitByGraph {
			messageStream = streams[0] // the Recv follows call 1
		}
	}

	plan, err := prepare(m.group, call)
	if err != nil {
		return nil, err
	}

	message := &preparedMessage{stream: messageStream, buffer: buffer}
	message.launch = func() error { return m.group.Launch(messageStream, plan) }
	if kind == waitByGraph {
		g, err := m.captureWork(messageStream, message.launch)
		if err != nil {
			return nil, err
		}

		message.launch = func() error { return g.Launch(messageStream) }
	}

	return message, nil
}

// queueWait makes stream s wait for arrived, an event that was recorded after the message, unless
// the Recv or the owner has already made s wait.
func (m *testRank) queueWait(
	kind string, s driver.Stream, message *preparedMessage, arrived driver.Event,
) error {
	switch kind {
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
	case ownersWaitAndEvent: // as a memory pool does when memory is freed
		return s.Record(m.device.streams.NewEvent())
	case ownersWaitAndFill:
		return s.Fill(message.buffer.segment.Address(), 0, messageBytes)
	default: // waitByRecv or waitByGraph: the message is on s
		return nil
	}
}
