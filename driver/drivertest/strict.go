package drivertest

import (
	"errors"
	"fmt"
	"testing"

	"symmem/driver"
)

// In a strict group, the sender and the receiver must have called the same number of collectives
// before a message. If the Send or the Recv is missing, the next collective returns a
// driver.MessageError with the number of this collective, counted from 1.

var strictRequirements = []requirement{
	{
		"in strict groups a forgotten Send or Recv is detected at the next collective",
		testOmittedCall,
	},
	{"in strict groups a Recv does not wait for a missing Send", testUnmatchedRecv},
	{"in strict groups a message cannot cross a collective", testOutOfStep},
	{"in other groups a message can cross a collective", testNonStrict},
}

func testOmittedCall(t *testing.T, h Harness) {
	for _, omitted := range []driver.Operation{driver.Send, driver.Recv} {
		t.Run(omitted.String(), func(t *testing.T) { checkOmittedCall(t, h, omitted) })
	}
}

// checkOmittedCall checks that all ranks get an error if the omitted operation is missing in
// omittingStep.
func checkOmittedCall(t *testing.T, h Harness, omitted driver.Operation) {
	bw := newBufferWorld(t, h, 3, 1<<20, options{
		checkCalls: true, isStrict: true, ignoreCloseErrors: true,
	})
	errs := bw.errorsByRank(func(r *rank) error {
		for step := 1; step <= stepCount; step++ {
			if err := runStep(bw, r, step, omitted); err != nil {
				return fmt.Errorf("step %d: %w", step, err)
			}
		}

		return nil
	})
	const detectingCollective = omittingStep // each step has one collective
	for number, err := range errs {
		if omitted == driver.Send && errors.Is(err, driver.ErrFault) {
			continue // another rank may detect the mistake first
		}

		if !isUnmatchedAt(err, detectingCollective) {
			t.Errorf("rank %d: got %v, want a MessageError at collective %d", number, err,
				detectingCollective)
		}
	}
}

// isUnmatchedAt reports whether err says that the given collective detected an unmatched message.
func isUnmatchedAt(err error, collective uint64) bool {
	e, ok := errors.AsType[*driver.MessageError](err)
	return ok && e.Fault == driver.MessagesUnmatched && e.Number == collective
}

const stepCount, omittingStep = 4, 3

// runStep runs a rank's part of one step: a message from rank 0 to rank 2, and a barrier. In
// omittingStep, it skips the omitted operation.
func runStep(bw *bufferWorld, r *rank, step int, omitted driver.Operation) error {
	isOmitted := func(o driver.Operation) bool { return step == omittingStep && o == omitted }
	var err error
	switch {
	case r.number == 0 && !isOmitted(driver.Send):
		call := message{peer: 2, tag: 1, bytes: 100}.send(bw.send[0])
		err = r.queueCall(r.group, r.stream, call)
	case r.number == 2 && !isOmitted(driver.Recv):
		stream := r.stream
		if isOmitted(driver.Send) {
			stream = r.newStream() // on r.stream, the Recv would hold up the barrier
		}

		call := message{peer: 0, tag: 1, bytes: 100}.recv(bw.recv[2])
		err = r.queueCall(r.group, stream, call)
	}

	if err != nil {
		return err
	}

	return r.launchAndWait(r.group, r.stream, barrier)
}

// Rank 0 sends tag 5, but rank 2 receives tag 1. Rank 2 must get an error although its Recv holds
// up its barrier.
func testUnmatchedRecv(t *testing.T, h Harness) {
	for _, source := range []int{0, driver.AnySource} {
		t.Run(fmt.Sprint("from ", source), func(t *testing.T) {
			bw := newBufferWorld(t, h, 3, 1<<20, options{isStrict: true, ignoreCloseErrors: true})
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
				t.Errorf("the receiver got %v, want a MessageError at collective %d", errs[2],
					firstCollective)
			}
		})
	}
}

func testOutOfStep(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 2, 1<<20, options{isStrict: true, ignoreCloseErrors: true})
	const receiver = 1
	must(t, bw.ranks[receiver].stream.Fill(bw.recv[receiver].addressAt(0), canary, 256))
	errs := bw.errorsByRank(func(r *rank) error { return sendAcrossBarrier(bw, r) })
	checkMessageEnds(t, firstMessageError(errs), driver.MessagesOutOfStep, driver.MessageEnds{
		From: 0, To: receiver, Tag: 6, Number: 1,
		Sent: 0, Received: 1, // collectives before the Send and before the Recv
	})
	bw.expectUntouched(receiver)
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

func testNonStrict(t *testing.T, h Harness) {
	bw := newBufferWorld(t, h, 2, 1<<20, options{checkCalls: true})
	bw.onEachRank(func(r *rank) { r.must(sendAcrossBarrier(bw, r)) })
}
