package drivertest

import (
	"errors"
	"fmt"
	"testing"

	"symmem/driver"
)

func testOmittedCall(t *testing.T, h Harness) {
	for _, omitted := range []driver.Operation{driver.Send, driver.Recv} {
		t.Run(omitted.String(), func(t *testing.T) {
			bw := newBufferWorld(t, h, 3, 1<<20, options{
				checkCalls: true, isStrict: true, allowFaults: true,
			})
			errs := bw.errorsByRank(func(r *rank) error {
				for step := range omittingStep + 2 {
					if err := sendExceptOne(bw, r, step, omitted); err != nil {
						return fmt.Errorf("step %d: %w", step, err)
					}
				}
				return nil
			})
			for number, err := range errs {
				if omitted == driver.Send && errors.Is(err, driver.ErrFault) {
					continue // another rank may detect the mistake first
				}
				if !isUnmatchedAt(err, omittingStep+1) {
					t.Errorf("rank %d: got %v, want a MessageError at collective %d", number, err,
						omittingStep+1)
				}
			}
		})
	}
}

func isUnmatchedAt(err error, collective uint64) bool {
	e, ok := errors.AsType[*driver.MessageError](err)
	return ok && e.Fault == driver.MessagesUnmatched && e.Number == collective
}

const omittingStep = 2 // number, from 0, of the step that lacks a Send or Recv

// sendExceptOne runs this rank's part of a step: a message from rank 0 to rank 2, followed by a
// barrier. In omittingStep, it skips the omitted operation.
func sendExceptOne(bw *bufferWorld, r *rank, step int, omitted driver.Operation) error {
	var call driver.Call
	switch r.number {
	case 0:
		call = messageCall(driver.Send, 2, 1, bw.send[0], 0, 100)
	case 2:
		call = messageCall(driver.Recv, 0, 1, bw.recv[2], 0, 100)
	}
	stream := r.stream
	if step == omittingStep && r.number == 2 {
		stream = r.newStream() // a Recv without a Send would block the rank's stream
	}
	isOmitted := step == omittingStep && call.Operation == omitted
	if r.number != 1 && !isOmitted {
		if err := r.queueCall(r.group, stream, call); err != nil {
			return err
		}
	}
	return r.launchAndWait(r.group, r.stream, driver.Call{Operation: driver.Barrier, Digest: 1})
}

// testMissingSend makes rank 2 wait for a message that is never sent. The rank must get an error,
// although its Recv blocks the stream of the collective that compares message counts. Rank 0 sends
// a message with a different tag, so that the total numbers of Sends and Recvs are the same.
func testMissingSend(t *testing.T, h Harness) {
	for _, source := range []int{0, driver.AnySource} {
		t.Run(fmt.Sprint("from ", source), func(t *testing.T) {
			bw := newBufferWorld(t, h, 3, 1<<20, options{isStrict: true, allowFaults: true})
			errs := bw.errorsByRank(func(r *rank) error {
				var call driver.Call
				switch r.number {
				case 0:
					call = messageCall(driver.Send, 2, 5, bw.send[0], 0, 100)
				case 2:
					call = messageCall(driver.Recv, source, 1, bw.recv[2], 0, 100)
				}
				if r.number != 1 {
					if err := r.queueCall(r.group, r.stream, call); err != nil {
						return err
					}
				}
				return r.launchAndWait(r.group, r.stream, driver.Call{Operation: driver.Barrier})
			})
			if !isUnmatchedAt(errs[2], 1) {
				t.Errorf("the receiver got %v, want a MessageError at collective 1", errs[2])
			}
		})
	}
}

// testOutOfStep sends a message before a barrier and receives it after the barrier.
func testOutOfStep(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 2, 1<<20, options{isStrict: true, allowFaults: true})
	must(t, bw.ranks[1].stream.Fill(bw.recv[1].addressAt(0), canary, 256))
	errs := bw.errorsByRank(func(r *rank) error { return sendAcrossBarrier(bw, r) })
	checkMessageEnds(t, firstMessageError(errs), driver.MessagesOutOfStep, driver.MessageEnds{
		From: 0, To: 1, Tag: 6, Number: 1, Sent: 0, Received: 1,
	})
	bw.expectUntouched(1)
}

func sendAcrossBarrier(bw *bufferWorld, r *rank) error {
	if r.number == 0 {
		call := messageCall(driver.Send, 1, 6, bw.send[0], 0, 10)
		if err := r.queueCall(r.group, r.stream, call); err != nil {
			return err
		}
	}
	if err := r.launchAndWait(r.group, r.stream,
		driver.Call{Operation: driver.Barrier}); err != nil {
		return err
	}
	if r.number == 0 {
		return nil
	}
	return r.launchAndWait(r.group, r.stream, messageCall(driver.Recv, 0, 6, bw.recv[1], 0, 10))
}

func testNonStrict(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 2, 1<<20, options{checkCalls: true})
	bw.onEachRank(func(r *rank) { r.must(sendAcrossBarrier(bw, r)) })
}
