package control

import (
	"fmt"
	"time"

	"symmem/driver"
	"symmem/internal/message"
)

// Ranks send each other messages with Send and Recv, besides their collectives. Suppose that rank 0
// calls Send three times, with tag 5 and rank 1 as the receiver. Rank 1 calls Recv three times,
// with tag 5 and rank 0 as the source. On each rank, these calls have the numbers 1 to 3. The
// message of the second Send, for example, arrives in the second Recv.
//
// A rank's collectives divide its calls into segments: calls before the first collective are in
// segment 0, those before the second one in segment 1, and so on. In strict groups, a Send and its
// Recv must be in the same segment. Other groups ignore segments.

// Messages is an optional interface of a Plane, which connects the ranks of a group. It numbers
// messages and diagnoses waits for them. Only planes on one machine implement it.
//
// In strict groups, Plane.Compare also compares counts of messages.
type Messages interface {
	driver.MessageCounts
	// Count counts a new call of Send or Recv and returns its number. Calls of Count with the same
	// peer must be serialized.
	Count(call *driver.Call) Message
	// DiagnoseMessage returns an error if a message from peer may never arrive, and otherwise nil. It
	// also warns of late ranks.
	//
	// The error is a RankLostError, TimeoutError, DeadlockError or PeerError. peer is a group rank or
	// AnySource, and since is the start of the wait. callText describes the waiting call.
	DiagnoseMessage(peer int, since time.Time, callText func() string) error
	// HasCalledMore reports whether the peer has called more than the given number of collectives.
	// If peer is AnySource, it reports whether all other ranks have. After it has returned true, this
	// rank can read all messages that the peer announced before these calls.
	HasCalledMore(peer int, collectives uint64) bool
	// IsLost reports whether the peer's process exited before the peer left the group.
	IsLost(peer int) bool
}

// Message identifies one rank's call of Send or Recv.
type Message struct {
	// Number is the number of this call among those with the same operation, peer and tag, from 1.
	Number uint64
	// After is the number of collectives that the rank called before.
	After uint64
}

// MessageSegment returns the segment of a call of Send or Recv with the given Message.After. In
// groups that are not strict, it returns 0.
func MessageSegment(g *driver.GroupConfig, after uint64) uint64 {
	if !g.Strict {
		return 0
	}

	return after
}

// DescribeMessage returns a description of a Send or Recv for errors, such as "Send 3 of 64 bytes
// with tag 1 to rank 2 of the world in group world". number is Message.Number, or 0 if unknown.
func DescribeMessage(g *driver.GroupConfig, call *driver.Call, number uint64) string {
	preposition := "to"
	if call.Operation == driver.Recv {
		preposition = "from"
	}

	peer := "any rank"
	if call.Root != driver.AnySource {
		peer = fmt.Sprintf("rank %d of the world", g.Ranks[call.Root])
	}

	numberText := ""
	if number > 0 {
		numberText = fmt.Sprintf(" %d", number)
	}

	return fmt.Sprintf("%v%s of %d bytes with tag %d %s %s in group %s", call.Operation, numberText,
		call.Count*int64(call.DataType.Size()), call.Tag, preposition, peer, g.Name())
}

// MessageEnd describes one end of a message: the call of Send or Recv.
type MessageEnd struct {
	Digest uint64 // hash of the call
	After  uint64 // see Message.After
	Bytes  uint64 // size of the message
	// Type is the element type. If the type of one end is unknown, it is 0 for both.
	Type driver.DataType
}

// CompareEnds compares the Send of a message with its Recv, and returns an error if they do not
// match.
//
// call is the Recv, source the sender's group rank, and number the message's number. Types and
// digests are compared only if compareCalls is true.
func CompareEnds(
	g *driver.GroupConfig, sent, received MessageEnd, call *driver.Call, source int, number uint64,
	compareCalls bool,
) error {
	ends := driver.MessageEnds{
		From: g.Ranks[source], To: g.Ranks[g.Rank], Tag: call.Tag, Number: number,
	}
	err := &driver.MessageError{Group: g.Name()}
	switch {
	case g.Strict && sent.After != received.After:
		err.Fault = driver.MessagesOutOfStep
		ends.Sent, ends.Received = sent.After, received.After
	case sent.Bytes != received.Bytes:
		err.Fault = driver.MessagesDiffer
		ends.Sent, ends.Received = sent.Bytes, received.Bytes
	case compareCalls && sent.Type != received.Type:
		err.Fault = driver.MessageTypesDiffer
		ends.Sent, ends.Received = uint64(sent.Type), uint64(received.Type)
	case compareCalls && sent.Digest != received.Digest:
		return g.Mismatch(number, call, source)
	default:
		return nil
	}

	err.Ends = []driver.MessageEnds{ends}
	return err
}

// AwaitedRecv describes a Recv whose message has not arrived.
type AwaitedRecv struct {
	Source, Tag int    // Source is a group rank or AnySource
	Number      uint64 // Message.Number, or 0 if it is unknown
}

// UnmatchedError returns an error about the unmatched messages of a rank when a group ends. It
// returns nil if there are none.
//
// unreceived lists messages to this rank without a Recv, and awaited this rank's Recvs without a
// message. unreceivedByPeers lists messages of this rank that other ranks have not received.
func UnmatchedError(
	g *driver.GroupConfig, unreceived []message.Arrival, awaited []AwaitedRecv,
	unreceivedByPeers []driver.MessageEnds,
) error {
	err := &driver.MessageError{
		Fault: driver.MessagesUnmatched, Group: g.Name(), Ends: unreceivedByPeers,
	}
	ownRank := g.Ranks[g.Rank]
	for _, arrival := range unreceived {
		err.Ends = append(err.Ends, driver.MessageEnds{
			From: g.Ranks[arrival.Source], To: ownRank, Tag: arrival.Tag, Number: arrival.Number,
			Sent: 1,
		})
	}

	for _, recv := range awaited {
		source := driver.AnySource
		if recv.Source != driver.AnySource {
			source = g.Ranks[recv.Source]
		}

		err.Ends = append(err.Ends, driver.MessageEnds{
			From: source, To: ownRank, Tag: recv.Tag, Number: recv.Number, Received: 1,
		})
	}

	if len(err.Ends) == 0 {
		return nil
	}

	err.Sort()
	return err
}
