package control

import (
	"fmt"
	"time"

	"symmem/driver"
	"symmem/internal/message"
)

// Messages are numbered from 1 for each sender, receiver and tag. For example, the second Recv from
// rank 0 with tag 5 receives the second Send of rank 0 to this rank with tag 5.
//
// The segment of a Send or Recv is the number of collectives that its rank called before. In strict
// groups, a Send and its Recv must have the same segment.

// Messages is an optional interface of a Plane that numbers messages and diagnoses missing ones.
// Only planes on one machine implement it. In strict groups, their Compare also compares counts of
// messages.
type Messages interface {
	driver.MessageCounts
	// Count numbers a new Send or Recv. Calls for the same peer must be serialized.
	Count(call *driver.Call) Message
	// DiagnoseMessage returns a RankLostError, TimeoutError, DeadlockError or PeerError if a message
	// from peer, a group rank or AnySource, may never arrive, and otherwise nil. It also warns of late
	// ranks. since is the start of the wait.
	DiagnoseMessage(peer int, since time.Time, callText func() string) error
	// HasCalledMore reports whether the peer has called more than the given number of collectives.
	// This rank can then read all messages that the peer announced before those collectives. For
	// AnySource, HasCalledMore considers all other ranks and reports whether each has.
	HasCalledMore(peer int, collectives uint64) bool
	// IsLost reports whether the peer's process exited before the peer left the group.
	IsLost(peer int) bool
}

// Message identifies a Send or Recv of one rank.
type Message struct {
	// Number counts the rank's calls with the same operation, peer and tag, from 1.
	Number uint64
	// After is the number of collectives that the rank called before.
	After uint64
}

// MessageSegment returns the segment of a Send or Recv with the given Message.After, or 0 if the
// group is not strict.
func MessageSegment(g *driver.GroupConfig, after uint64) uint64 {
	if !g.Strict {
		return 0
	}

	return after
}

// DescribeMessage returns a text for errors such as "Send 3 of 64 bytes with tag 1 to rank 2 of the
// world in group world". number is Message.Number, or 0 if unknown.
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

// MessageEnd describes the Send or the Recv of a message.
type MessageEnd struct {
	Digest uint64          // hash of the call
	After  uint64          // Message.After
	Bytes  uint64          // size of the message
	Type   driver.DataType // of elements; 0 on both ends if the type of one is unknown
}

// CompareEnds returns an error if the ends of a message do not match. call is the Recv, source is
// the group rank that sent the message, and number is its Message.Number. CompareEnds ignores types
// and digests unless compareCalls is true.
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
	Source int // group rank or AnySource
	Tag    int
	Number uint64 // Message.Number, or 0 if unknown
}

// UnmatchedError returns an error about unmatched messages when a group ends, or nil if there are
// none. unreceived are the messages to this rank without a Recv, awaited are this rank's Recvs
// without a message, and unreceivedByPeers are this rank's messages that peers have not received.
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
