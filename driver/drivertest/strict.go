package drivertest

import (
	"errors"
	"fmt"
	"testing"

	"symmem/driver"
)

// In a strict group (GroupConfig.Strict), the Send and the Recv of a message must be between the
// same collectives. For example, rank 0 sends a message to rank 2, and then all ranks call a
// barrier, the first collective. If rank 2 has forgotten the Recv, the barrier detects it: the
// numbers of messages do not match. The ranks get a driver.MessageError with the number of the
// collective, 1.
//
// newBufferWorld opens ranks with a group. Each rank has a send buffer and a receive buffer.

// testOmittedCall makes four steps of a message and a barrier. In one step, the Send or the Recv is
// omitted. The barrier of this step must detect it.
func testOmittedCall(t *testing.T, h Harness) {
	for _, omitted := range []driver.Operation{driver.Send, driver.Recv} {
		t.Run(omitted.String(), func(t *testing.T) {
			bw := newBufferWorld(t, h, 3, 1<<20, options{
				checkCalls: true, isStrict: true, allowFaults: true,
			})
			errs := bw.errorsByRank(func(r *rank) error {
				for step := range omittingStep + 2 {
					if err := runStep(bw, r, step, omitted); err != nil {
						return fmt.Errorf("step %d: %w", step, err)
					}
				}

				return nil
			})
			const detectingCollective = omittingStep + 1 // collectives are numbered from 1
			for number, err := range errs {
				if omitted == driver.Send && errors.Is(err, driver.ErrFault) {
					continue // another rank may detect the mistake first
				}

				if !isUnmatchedAt(err, detectingCollective) {
					t.Errorf("rank %d: got %v, want a MessageError at collective %d", number, err,
						detectingCollective)
				}
			}
		})
	}
}

// isUnmatchedAt reports whether err is a MessageError of an unmatched message that the collective
// with the given number has detected.
func isUnmatchedAt(err error, collective uint64) bool {
	e, ok := errors.AsType[*driver.MessageError](err)
	return ok && e.Fault == driver.MessagesUnmatched && e.Number == collective
}

const omittingStep = 2 // number, from 0, of the step in which a Send or Recv is omitted

// runStep runs a rank's part of a step: a message from rank 0 to rank 2, followed by a barrier. In
// omittingStep, it skips the operation omitted.
func runStep(bw *bufferWorld, r *rank, step int, omitted driver.Operation) error {
	isOmittingStep := step == omittingStep
	sends := !isOmittingStep || omitted != driver.Send
	receives := !isOmittingStep || omitted != driver.Recv
	var err error
	switch {
	case r.number == 0 && sends:
		call := message{peer: 2, tag: 1, bytes: 100}.send(bw.send[0])
		err = r.queueCall(r.group, r.stream, call)
	case r.number == 2 && receives:
		stream := r.stream
		if isOmittingStep {
			stream = r.newStream() // a Recv without a Send would block the stream of the barrier
		}

		call := message{peer: 0, tag: 1, bytes: 100}.recv(bw.recv[2])
		err = r.queueCall(r.group, stream, call)
	}

	if err != nil {
		return err
	}

	return r.launchAndWait(r.group, r.stream, barrier)
}

// testMissingSend makes rank 2 wait for a message with tag 1 that is never sent. It must get an
// error, although its Recv blocks the stream of the barrier. Rank 0 sends a message with tag 5
// instead, so that the total numbers of Sends and Recvs are the same.
func testMissingSend(t *testing.T, h Harness) {
	for _, source := range []int{0, driver.AnySource} {
		t.Run(fmt.Sprint("from ", source), func(t *testing.T) {
			bw := newBufferWorld(t, h, 3, 1<<20, options{isStrict: true, allowFaults: true})
			errs := bw.errorsByRank(func(r *rank) error {
				var err error
				switch r.number {
				case 0:
					call := message{peer: 2, tag: 5, bytes: 100}.send(bw.send[0])
					err = r.queueCall(r.group, r.stream, call)
				case 2:
					call := message{peer: source, tag: 1, bytes: 100}.recv(bw.recv[2])
					err = r.queueCall(r.group, r.stream, call)
				}

				if err != nil {
					return err
				}

				return r.launchAndWait(r.group, r.stream, barrier)
			})
			const firstCollective = 1
			if !isUnmatchedAt(errs[2], firstCollective) {
				t.Errorf("the receiver got %v, want a MessageError at collective 1", errs[2])
			}
		})
	}
}

// testOutOfStep sends a message before a barrier and receives it after the barrier. The receive
// buffer, which is filled with canaries first, must stay unchanged.
func testOutOfStep(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 2, 1<<20, options{isStrict: true, allowFaults: true})
	must(t, bw.ranks[1].stream.Fill(bw.recv[1].addressAt(0), canary, 256))
	errs := bw.errorsByRank(func(r *rank) error { return sendAcrossBarrier(bw, r) })
	checkMessageEnds(t, firstMessageError(errs), driver.MessagesOutOfStep, driver.MessageEnds{
		From: 0, To: 1, Tag: 6, Number: 1,
		Sent: 0, Received: 1, // the numbers of collectives before the Send and before the Recv
	})
	bw.expectUntouched(1)
}

// sendAcrossBarrier makes rank 0 send before a barrier, and rank 1 receive after the barrier.
func sendAcrossBarrier(bw *bufferWorld, r *rank) error {
	if r.number == 0 {
		call := message{peer: 1, tag: 6, bytes: 10}.send(bw.send[0])
		if err := r.queueCall(r.group, r.stream, call); err != nil {
			return err
		}
	}

	if err := r.launchAndWait(r.group, r.stream, barrier); err != nil {
		return err
	}

	if r.number == 1 {
		call := message{peer: 0, tag: 6, bytes: 10}.recv(bw.recv[1])
		return r.launchAndWait(r.group, r.stream, call)
	}

	return nil
}

// testNonStrict makes the calls of testOutOfStep in a group that is not strict. There, they are
// correct.
func testNonStrict(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 2, 1<<20, options{checkCalls: true})
	bw.onEachRank(func(r *rank) { r.must(sendAcrossBarrier(bw, r)) })
}
