package control

import (
	"fmt"
	"time"

	"symmem/driver"
	"symmem/internal/message"
)

// Messages is an optional interface of a Plane. It numbers messages and diagnoses waits for them.
// Only planes on one machine implement it. If GroupConfig.Strict is set, Plane.Compare also
// compares counts of messages.
type Messages interface {
	driver.MessageCounts
	// Count counts a new call of Send or Recv and returns its number. Calls of Count with the same
	// peer must be serialized.
	Count(call *driver.Call) Message
	// DiagnoseMessage returns an error if a message from peer may never arrive, and otherwise nil.
	// The error is a RankLostError, TimeoutError, DeadlockError or PeerError. It also warns of late
	// ranks. peer is a group rank or AnySource, and since is the start of the wait. callText returns
	// a description of the waiting call.
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

// MessageEnd describes the Send or the Recv of a message.
type MessageEnd struct {
	Digest uint64 // hash of the call
	After  uint64 // see Message.After
	Bytes  uint64 // size of the message
	// Type is the element type, or 0 if one end's type is unknown.
	Type driver.DataType
}

// CompareEnds compares the Send of a message with its Recv, and returns an error if they do not
// match. call is the Recv, source the sender's group rank, and number the message's number (see
// Message.Number). Types and digests are compared only if compareCalls is true.
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

// MessageSegment returns the segment of a message with the given Message.After. Segments divide the
// calls of a rank, and a Send matches only Recvs in the same segment. In strict groups, each
// collective begins a segment. Other groups have only segment 0.
func MessageSegment(g *driver.GroupConfig, after uint64) uint64 {
	if !g.Strict {
		return 0
	}

	return after
}

// AwaitedRecv describes a Recv whose message has not arrived.
type AwaitedRecv struct {
	Source, Tag int    // Source is a group rank or AnySource
	Number      uint64 // Message.Number, or 0 if it is unknown
}

// UnmatchedError returns an error that lists Sends without a Recv and Recvs without a Send when a
// group ends. It returns nil if there are none. unreceived lists messages to this rank without a
// Recv, and awaited this rank's Recvs without a message. unreceivedByPeers lists messages of this
// rank that peers have not received.
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
		ends := driver.MessageEnds{
			From: driver.AnySource, To: ownRank, Tag: recv.Tag, Number: recv.Number, Received: 1,
		}
		if recv.Source != driver.AnySource {
			ends.From = g.Ranks[recv.Source]
		}

		err.Ends = append(err.Ends, ends)
	}

	if len(err.Ends) == 0 {
		return nil
	}

	err.Sort()
	return err
}
