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
// blocked NCCL kernel and a direct kernel.
func TestEmptyCallKeepsTheOrder(t *testing.T) {
	w := newAdditiveGroup(t, 2, time.Minute)
	w.withSum(1000, func(m *testRank, p *repeatedSum) error {
		others, err := m.newStreams(2)
		if err = errors.Join(err, m.warmUp([]*repeatedSum{p})); err != nil {
			return err
		}
		emptyPlan, prepareErr := prepare(m.group, m.ringAllToAllV(p, 0, driver.PathPlain))
		if err = errors.Join(err, prepareErr, m.check(w, p, m.stream)); err != nil {
			return err
		}
		first := func() error {
			return errors.Join(p.launch(m.group, m.stream, driver.PathPlain),
				m.group.Launch(others[0], emptyPlan))
		}
		second := func() error { return p.launch(m.group, others[1], driver.PathDirect) }
		err = m.checkOrder(m.stream.(*stream.Stream).CUDA, first, others[1].CUDA, second)
		return errors.Join(err, m.check(w, p, m.stream, others[0], others[1]))
	})
}

// The kinds of work that waits for a message. With one of the last two, the owner of an adopted
// stream has made the stream wait, and symmem queues an event or a fill after that.
const (
	waitByRecv         = "a receive"
	waitByEvent        = "a wait"
	waitByReusedMemory = "reused memory"
	waitByHostFunction = "a host function"
	waitByGraph        = "a graph"
	ownersWaitAndEvent = "a wait of the owner, an event"
	ownersWaitAndFill  = "a wait of the owner, a fill"
)

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
				w.withSum(1000, func(m *testRank, p *repeatedSum) error {
					return m.launchAroundMessage(w, p, kind, adopted)
				})
			})
		}
	}
}

// launchAroundMessage launches two calls, the first on streams[0] and the second on streams[1]. On
// rank 0, work of the given kind follows the first call and waits for a message. Rank 1 sends the
// message after the second call.
func (m *testRank) launchAroundMessage(
	w *testGroup, p *repeatedSum, kind string, adopted bool,
) error {
	buffer, err := m.mapRegion(8)
	streams, streamErr := m.newStreams(3)
	foreign, foreignErr := m.newForeignStreams(3)
	if err = errors.Join(err, streamErr, foreignErr); err != nil {
		return err
	}
	for i, o := range foreign {
		if adopted {
			streams[i] = o.stream
		}
	}
	message := driver.Call{
		Operation: driver.Send, DataType: driver.Uint8, Count: 8, Root: 1 - m.rank,
		Send: buffer.segment.Address(), Recv: buffer.segment.Address(),
	}
	messageStream := streams[1]
	if m.rank == 0 {
		message.Operation, messageStream = driver.Recv, streams[2]
		if kind == waitByRecv || kind == waitByGraph {
			messageStream = streams[0] // the Recv itself is the work that waits
		}
	}
	plan, err := prepare(m.group, message)
	if err != nil {
		return err
	}
	launchMessage := func() error { return m.group.Launch(messageStream, plan) }
	if kind == waitByGraph { // on both ranks
		g, err := m.captureWork(messageStream, launchMessage)
		if err != nil {
			return err
		}
		launchMessage = func() error { return g.Launch(messageStream) }
	}
	err = errors.Join(err, p.launch(m.group, streams[0], driver.PathDirect))
	if m.rank == 0 {
		arrived := m.device.streams.NewEvent()
		err = errors.Join(err, launchMessage(), messageStream.Record(arrived))
		if isOwnersWait(kind) {
			err = errors.Join(err, join(foreign[0], foreign[2]))
		}
		err = errors.Join(err,
			m.queueWait(kind, streams[0], messageStream, arrived, message.Recv))
	}
	err = errors.Join(err, p.launch(m.group, streams[1], driver.PathDirect))
	if m.rank == 1 {
		err = errors.Join(err, launchMessage())
	}
	for _, s := range streams {
		err = errors.Join(err, s.Synchronize(w.t.Context()))
	}
	return errors.Join(err, m.check(w, p), finish(foreign...))
}

// queueWait makes stream s wait for the work that is already queued on messageStream, where event
// e has been recorded after it. kind selects the way to wait. Without a wait that is left to
// queue, it does nothing, or queues work that writes buffer or records an event.
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
		return errors.Join(messageStream.Host(func() { close(arrived) }),
			s.Host(func() { <-arrived }))
	case ownersWaitAndEvent: // a pool does the same when memory is freed
		return s.Record(m.device.streams.NewEvent())
	case ownersWaitAndFill:
		return s.Fill(buffer, 0, 8)
	default: // waitByRecv or waitByGraph: s is messageStream
		return nil
	}
}
