package symmem_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"symmem"
)

// plainOptions makes all calls take the plain path, which needs no registered memory. The ranks
// compare every call.
func plainOptions() symmem.Options {
	return symmem.Options{
		Path: symmem.PathPlain, Tuning: symmem.BuiltInTuning, Check: symmem.CheckEvery,
	}
}

// newInts allocates a buffer that contains the numbers. All ranks must call it with equally long
// lists. Like readInts, it fails the test on an error.
func (r *rank) newInts(p *symmem.Pool, numbers ...int32) symmem.Memory {
	r.t.Helper()
	bytes := int64(4 * len(numbers))
	m, err := r.alloc(p, bytes).Memory().Slice(0, bytes)
	r.ok(err)
	r.ok(r.DefaultStream().Copy(m, symmem.Host(numbers)))
	r.synchronize()
	return m
}

// readInts returns the first n numbers in m.
func (r *rank) readInts(m symmem.Memory, n int) []int32 {
	r.t.Helper()
	numbers := make([]int32, n)
	m, err := m.Slice(0, int64(4*n))
	r.ok(err)
	r.ok(r.DefaultStream().Copy(symmem.Host(numbers), m))
	r.synchronize()
	return numbers
}

// TestMessageTagsAndSources sends two messages with distinct tags from each of ranks 1 and 2. Rank
// 0 receives them from any source, in another order of tags.
func TestMessageTagsAndSources(t *testing.T) {
	const receiver = 0
	runRanks(t, 3, plainOptions(), func(r *rank) {
		g, s := r.World(), r.DefaultStream()
		// Each message contains the sender's rank. The receiver has room for all four messages.
		m := r.newInts(r.pool(), int32(r.Rank()), 0, 0, 0)
		if r.Rank() != receiver {
			for _, tag := range []int{symmem.MaxTag, 0} {
				r.ok(g.SendTagged(r.ctx, m, 1, symmem.Int32, receiver, tag, s))
			}

			r.ok(s.Synchronize(r.ctx))
			return
		}

		sources := make([]int, 4)
		for i, tag := range []int{0, 0, symmem.MaxTag, symmem.MaxTag} {
			element, err := m.Slice(int64(4*i), 4)
			r.ok(err)
			r.ok(r.Interop().Do(r.ctx, g, symmem.Call{
				Operation: symmem.OpRecv, Type: symmem.Int32, Root: symmem.AnySource,
				Tag: tag, Count: 1, Recv: element,
				Arrived: func(source int) { sources[i] = source },
			}, s))
		}

		r.ok(s.Synchronize(r.ctx))
		got := r.readInts(m, 4)
		for i := range got {
			if int(got[i]) != sources[i] {
				r.failf("message %d contains rank %d, but Arrived got rank %d", i, got[i], sources[i])
			}
		}

		for _, i := range []int{0, 2} { // the first message of each tag
			if first, second := got[i], got[i+1]; min(first, second) != 1 || max(first, second) != 2 {
				r.failf("messages %d and %d are from ranks %d and %d, want ranks 1 and 2", i, i+1,
					first, second)
			}
		}
	})
}

// TestInvalidMessages makes calls with an argument that is invalid or that the operation lacks. All
// must return ErrInvalid.
func TestInvalidMessages(t *testing.T) {
	runRanks(t, 2, plainOptions(), func(r *rank) {
		g, x := r.World(), symmem.Host(make([]int32, 4))
		onePerRank := []int64{1, 1}
		splits := symmem.Contiguous(onePerRank, onePerRank)
		for name, c := range map[string]symmem.Call{
			"a negative tag":          {Operation: symmem.OpSend, Root: 1 - r.Rank(), Tag: -1},
			"a tag of a collective":   {Operation: symmem.OpBarrier, Tag: 1},
			"a send to any rank":      {Operation: symmem.OpSend, Root: symmem.AnySource},
			"Arrived for a barrier":   {Operation: symmem.OpBarrier, Arrived: func(int) {}},
			"splits of an all-to-all": {Operation: symmem.OpAllToAll, Splits: &splits},
			"no splits":               {Operation: symmem.OpAllToAllV},
			"a count with splits":     {Operation: symmem.OpAllToAllV, Splits: &splits, Count: 1},
			"splits for no ranks":     {Operation: symmem.OpAllToAllV, Splits: &symmem.Splits{}},
		} {
			c.Type, c.Send, c.Recv = symmem.Int32, x, x
			if err := r.Interop().Do(r.ctx, g, c, nil); !errors.Is(err, symmem.ErrInvalid) {
				r.failf("%s: got %v, want ErrInvalid", name, err)
			}
		}
	})
}

// messageTag is the tag of the messages of all tests below. Its value does not matter.
const messageTag = 5

// runMessageSteps runs four steps and returns the first error. In each step, rank 0 sends a message
// to the last rank on a separate stream, and all ranks then run a collective. A rank for which skip
// returns true omits its Send or Recv.
func runMessageSteps(r *rank, skip func(step, rank int) bool) error {
	const messageCount, sumCount = 100, 10
	g, s := r.World(), r.DefaultStream()
	p, last := r.pool(), r.Size()-1
	message := r.newInts(p, make([]int32, messageCount)...)
	sum := r.newInts(p, make([]int32, sumCount)...)
	messageStream, err := r.NewStream()
	r.ok(err)
	defer func() {
		_ = messageStream.Synchronize(r.ctx) // fails if the group has failed
	}()
	for step := range 4 {
		isSkipped := skip(step, r.Rank())
		if r.Rank() == 0 && !isSkipped {
			err = g.SendTagged(
				r.ctx, message, messageCount, symmem.Int32, last, messageTag, messageStream)
		}

		if r.Rank() == last && !isSkipped {
			err = g.RecvTagged(
				r.ctx, message, messageCount, symmem.Int32, 0, messageTag, messageStream)
		}

		if err == nil {
			err = g.AllReduce(r.ctx, sum, sum, sumCount, symmem.Int32, symmem.Max, s)
		}

		err = errors.Join(err, s.Synchronize(r.ctx))
		if err != nil {
			return err
		}
	}

	return nil
}

// TestNextCollectiveFindsUnmatchedMessage omits the second Send, on rank 0, or the second Recv, on
// rank 2. The collective that follows must fail with an error that counts the Sends and Recvs.
func TestNextCollectiveFindsUnmatchedMessage(t *testing.T) {
	const sender, receiver = 0, 2
	for _, forgetful := range []int{sender, receiver} {
		t.Run(fmt.Sprint("rank ", forgetful), func(t *testing.T) {
			want := symmem.MessageEnds{From: sender, To: receiver, Tag: messageTag}
			// By the second collective, only the rank that forgets nothing has made two calls.
			if forgetful == sender {
				want.Sent, want.Received = 1, 2
			} else {
				want.Sent, want.Received = 2, 1
			}

			var errs [3]error
			runRanks(t, 3, plainOptions(), func(r *rank) {
				const secondStep = 1
				isForgotten := func(step, rank int) bool {
					return step == secondStep && rank == forgetful
				}
				_ = runMessageSteps(r, isForgotten) // the cause below explains the error
				<-r.World().Ended()
				errs[r.Rank()] = r.World().Cause(r.ctx)
			})
			for rank, err := range errs {
				var e *symmem.MessageError
				if !errors.As(err, &e) || e.Number != 2 || len(e.Ends) != 1 || e.Ends[0] != want {
					t.Errorf("rank %d: got %v, want %v at collective 2", rank, err, want)
				}

				if err != nil && err.Error() != errs[0].Error() {
					t.Errorf("rank %d: got %q, want %q as on rank 0", rank, err, errs[0])
				}
			}
		})
	}
}

// TestUnorderedMessagesMayOvertakeCollectives sends a message before two barriers and receives it
// after them. With the option UnorderedMessages, the barriers must not fail.
func TestUnorderedMessagesMayOvertakeCollectives(t *testing.T) {
	o := plainOptions()
	o.UnorderedMessages = true
	runRanks(t, 2, o, func(r *rank) {
		g, s := r.World(), r.DefaultStream()
		values := []int32{7, 6} // by rank
		m := r.newInts(r.pool(), values[r.Rank()])
		if r.Rank() == 0 {
			r.ok(g.Send(r.ctx, m, 1, symmem.Int32, 1, s))
		}

		r.ok(g.Barrier(r.ctx, s))
		r.ok(g.Barrier(r.ctx, s))
		if r.Rank() == 1 {
			r.ok(g.Recv(r.ctx, m, 1, symmem.Int32, 0, s))
		}

		r.ok(s.Synchronize(r.ctx))
		if got := r.readInts(m, 1)[0]; got != values[0] {
			r.failf("got %d, want %d from rank 0", got, values[0])
		}
	})
}

// TestCloseReportsUnmatchedMessage closes a group in which rank 1 has not received a message. The
// Close of rank 1 must return an error. Rank 0 may get the error, too, if it closes later.
func TestCloseReportsUnmatchedMessage(t *testing.T) {
	runRanks(t, 2, plainOptions(), func(r *rank) {
		g, err := r.Join(r.ctx, "leaving", []int{0, 1})
		r.ok(err)
		m := r.newInts(r.pool(), 1)
		if r.Rank() == 0 {
			r.ok(g.SendTagged(r.ctx, m, 1, symmem.Int32, 1, messageTag, nil))
			r.ok(r.DefaultStream().Synchronize(r.ctx))
		}

		r.ok(r.World().Barrier(r.ctx, nil))
		r.synchronize() // the message has arrived
		err = g.Close()
		if r.Rank() == 1 {
			want := symmem.MessageEnds{
				From: 0, To: 1, Tag: messageTag, Number: 1, Sent: 1, Received: 0,
			}
			var e *symmem.MessageError
			if !errors.As(err, &e) || e.Fault != symmem.MessagesUnmatched ||
				!slices.Equal(e.Ends, []symmem.MessageEnds{want}) {
				r.failf("got %v, want a MessageError for the unmatched message %v", err, want)
			}
		}

		r.ok(r.World().Barrier(r.ctx, nil))
	})
}

// TestMismatchedMessageNamesBothEnds sends 7 int32 from rank 0 to rank 1, which receives another
// size or type. The error of every rank must describe the Send and the Recv.
func TestMismatchedMessageNamesBothEnds(t *testing.T) {
	const sentCount, largerCount = 7, 13
	for _, check := range []symmem.CheckLevel{symmem.CheckEvery, symmem.CheckOff} {
		for _, expected := range []struct {
			count    int64           // elements that rank 1 receives
			recvType symmem.DataType // type that rank 1 receives
			fault    symmem.MessageFault
			ends     symmem.MessageEnds // Sent and Received are sizes in bytes, or types
		}{
			{
				count: largerCount, recvType: symmem.Int32, fault: symmem.MessagesDiffer,
				ends: symmem.MessageEnds{Sent: 4 * sentCount, Received: 4 * largerCount},
			},
			{
				count: sentCount, recvType: symmem.Float32, fault: symmem.MessageTypesDiffer,
				ends: symmem.MessageEnds{
					Sent: uint64(symmem.Int32), Received: uint64(symmem.Float32),
				},
			},
		} {
			onHost := withBackend(symmem.Options{}).Backend == "host"
			comparesTypes := onHost && check == symmem.CheckEvery
			if expected.fault == symmem.MessageTypesDiffer && !comparesTypes {
				continue
			}

			want := expected.ends
			want.From, want.To, want.Tag, want.Number = 0, 1, messageTag, 1
			t.Run(fmt.Sprint(check, " ", expected.fault), func(t *testing.T) {
				runRanks(t, 3, symmem.Options{Check: check}, func(r *rank) {
					g, m := r.World(), r.newInts(r.pool(), make([]int32, largerCount)...)
					switch r.Rank() {
					case 0:
						r.ok(g.SendTagged(r.ctx, m, sentCount, symmem.Int32, 1, messageTag, nil))
					case 1:
						_ = g.RecvTagged(r.ctx, m, expected.count, expected.recvType, 0, messageTag, nil)
					}

					// One of these calls fails. The test checks only the cause.
					_ = g.Barrier(r.ctx, nil)
					_ = r.DefaultStream().Synchronize(r.ctx)
					<-g.Ended()
					var e *symmem.MessageError
					if err := g.Cause(r.ctx); !errors.As(err, &e) || e.Fault != expected.fault ||
						!slices.Equal(e.Ends, []symmem.MessageEnds{want}) {
						r.failf("got %v, want %v", err, want)
					}
				})
			})
		}
	}
}
