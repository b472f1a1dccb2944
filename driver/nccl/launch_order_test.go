package nccl

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"symmem/driver"
	"symmem/driver/nccl/internal/stream"
)

// TestEmptyCallKeepsTheOrder launches an empty AllToAllV, which makes no NCCL call, between a
// blocked NCCL kernel and a direct kernel. The direct kernel must not run before the NCCL kernel.
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

		first := func() error {
			if err := p.launch(m.group, m.stream, driver.PathPlain); err != nil {
				return err
			}

			return m.group.Launch(others[0], emptyPlan)
		}
		second := func() error { return p.launch(m.group, others[1], driver.PathDirect) }
		// checkOrder blocks m.stream until both have been launched.
		err = m.checkOrder(m.stream.(*stream.Stream).CUDA, first, others[1].CUDA, second)
		return errors.Join(err, m.check(w, p, m.stream, others[0], others[1]))
	})
}

// The kinds of work that waits for a message. For one of the last two, the owner of an adopted
// stream (a stream of another library) makes the stream wait for the message's stream. symmem then
// queues an event or a fill after that wait.
const (
	waitByRecv         = "a receive"
	waitByEvent        = "a wait"
	waitByReusedMemory = "reused memory"
	waitByHostFunction = "a host function"
	waitByGraph        = "a graph"
	ownersWaitAndEvent = "a wait of the owner, an event"
	ownersWaitAndFill  = "a wait of the owner, a fill"
)

// isOwnersWait reports whether the owner of an adopted stream queues the wait.
func isOwnersWait(kind string) bool {
	return kind == ownersWaitAndEvent || kind == ownersWaitAndFill
}

// TestCallDoesNotWaitForWorkQueuedAfterEarlierCall queues work that waits for a message after a
// call. The peer sends the message only after a second call, which runs on another stream. The
// second call must therefore not wait for the work that follows the first.
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

// launchAroundMessage launches two calls, the first on streams[0] and the second on streams[1]. On
// rank 0, work of the given kind follows the first call and waits for a message. Rank 1 sends the
// message after the second call. If adopted is set, all streams belong to another library.
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

	launchMessage, messageStream, err := m.prepareMessage(buffer, kind, streams)
	if err != nil {
		return err
	}

	err = p.launch(m.group, streams[0], driver.PathDirect)
	if m.rank == 0 {
		arrived := m.device.streams.NewEvent()
		err = errors.Join(err, launchMessage())
		err = errors.Join(err, messageStream.Record(arrived))
		if isOwnersWait(kind) {
			err = errors.Join(err, join(foreign[0], foreign[2]))
		}

		address := buffer.segment.Address()
		err = errors.Join(err, m.queueWait(kind, streams[0], messageStream, arrived, address))
	}

	err = errors.Join(err, p.launch(m.group, streams[1], driver.PathDirect))
	if m.rank == 1 {
		err = errors.Join(err, launchMessage())
	}

	for _, s := range streams {
		err = errors.Join(err, s.Synchronize(w.t.Context()))
	}

	err = errors.Join(err, m.check(w, p))
	return errors.Join(err, finish(foreign...))
}

// prepareMessage prepares a Recv on rank 0 and the matching Send on rank 1, with kind waitByGraph
// as a graph. It returns a function that launches the message, and the stream on which it does so.
func (m *testRank) prepareMessage(
	buffer *region, kind string, streams []*stream.Stream,
) (launch func() error, messageStream driver.Stream, err error) {
	message := driver.Call{
		Operation: driver.Send, DataType: driver.Uint8, Count: messageBytes, Root: 1 - m.rank,
		Send: buffer.segment.Address(), Recv: buffer.segment.Address(),
	}
	messageStream = streams[1] // of rank 1: the Send follows the second call
	if m.rank == 0 {
		message.Operation, messageStream = driver.Recv, streams[2]
		if kind == waitByRecv || kind == waitByGraph {
			messageStream = streams[0] // the Recv itself is the work that waits
		}
	}

	plan, err := prepare(m.group, message)
	if err != nil {
		return nil, nil, err
	}

	launch = func() error { return m.group.Launch(messageStream, plan) }
	if kind != waitByGraph {
		return launch, messageStream, nil
	}

	g, err := m.captureWork(messageStream, launch)
	if err != nil {
		return nil, nil, err
	}

	return func() error { return g.Launch(messageStream) }, messageStream, nil
}

// queueWait makes stream s wait for the message that has been launched on messageStream. Event e
// has been recorded after the message. kind selects the way to wait. If the owner has already made
// s wait, queueWait queues an event or a fill of buffer. If s is messageStream, it does nothing.
func (m *testRank) queueWait(
	kind string, s, messageStream driver.Stream, e driver.Event, buffer uintptr,
) error {
	switch kind {
	case waitByEvent:
		return s.Wait(e)
	case waitByReusedMemory:
		return s.WaitIgnoringErrors(e)
	case waitByHostFunction:
		arrived := make(chan struct{})
		if err := messageStream.Host(func() { close(arrived) }); err != nil {
			return err
		}

		return s.Host(func() { <-arrived })
	case ownersWaitAndEvent: // a pool does the same when memory is freed
		return s.Record(m.device.streams.NewEvent())
	case ownersWaitAndFill:
		return s.Fill(buffer, 0, messageBytes)
	default: // waitByRecv or waitByGraph: s is messageStream
		return nil
	}
}
