package nccl

import (
	"errors"
	"fmt"
	"strings"
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
		plan, prepareErr := prepare(m.group, m.ringAllToAllV(p, 0, driver.PathPlain))
		if err = errors.Join(err, prepareErr, m.check(w, p, m.stream)); err != nil {
			return err
		}
		first := func() error {
			return errors.Join(p.launch(m.group, m.stream, driver.PathPlain),
				m.group.Launch(others[0], plan))
		}
		second := func() error { return p.launch(m.group, others[1], driver.PathDirect) }
		err = m.checkOrder(m.stream.(*stream.Stream).CUDA, first, others[1].CUDA, second)
		return errors.Join(err, m.check(w, p, m.stream, others[0], others[1]))
	})
}

// TestCallDoesNotWaitForWorkQueuedAfterEarlierCall queues, after a call, work that waits for a
// message. The peer sends the message only after a second call on another stream, so the second
// call must not wait for that work.
func TestCallDoesNotWaitForWorkQueuedAfterEarlierCall(t *testing.T) {
	for _, adopted := range []bool{false, true} {
		kinds := []string{"a receive", "a wait", "reused memory", "a host function", "a graph"}
		if adopted {
			kinds = append(kinds, ownersWait+", an event", ownersWait+", a fill")
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

// launchAroundMessage launches two calls on different streams. On rank 0, the first call is
// followed by work that waits for a message, which rank 1 sends after the second call.
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
		if kind == "a receive" || kind == "a graph" {
			messageStream = streams[0]
		}
	}
	plan, err := prepare(m.group, message)
	if err != nil {
		return err
	}
	launchMessage := func() error { return m.group.Launch(messageStream, plan) }
	if kind == "a graph" {
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
		if strings.HasPrefix(kind, ownersWait) {
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

// ownersWait is the prefix of kinds in which an adopted stream's owner makes the stream wait.
const ownersWait = "a wait of the owner"

// queueWait makes stream s wait for event e, which is recorded on stream sender. kind selects the
// way to wait. If the owner has already made s wait, queueWait only queues work.
func (m *testRank) queueWait(
	kind string, s, sender driver.Stream, e driver.Event, buffer uintptr,
) error {
	switch kind {
	case "a wait":
		return s.Wait(e)
	case "reused memory":
		return s.WaitIgnoringErrors(e)
	case "a host function":
		arrived := make(chan struct{})
		return errors.Join(sender.Host(func() { close(arrived) }), s.Host(func() { <-arrived }))
	case ownersWait + ", an event": // a pool does the same when memory is freed
		return s.Record(m.device.streams.NewEvent())
	case ownersWait + ", a fill":
		return s.Fill(buffer, 0, 8)
	default:
		return nil
	}
}
