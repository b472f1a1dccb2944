package control

import (
	"fmt"
	"time"

	"symmem/driver"
	"symmem/internal/message"
)

// Messages is an optional interface of a Plane on one machine. It counts messages and finds out why
// one does not arrive. With GroupConfig.Strict, Compare includes message counts.
type Messages interface {
	driver.MessageCounts
	// Count numbers a Send or Recv when it is called. Calls with the same peer must be serialized.
	Count(call *driver.Call) Message
	// DiagnoseMessage returns why a message from peer may never arrive, or nil. It warns of late
	// ranks. since is the start of the wait. peer can be AnySource. The error is a RankLostError,
	// TimeoutError, DeadlockError or PeerError.
	DiagnoseMessage(peer int, since time.Time, callText func() string) error
	// HasCalledMore reports whether the peer (for AnySource, every other rank) has called more than
	// the given number of collectives. Messages that it announced before can then be read.
	HasCalledMore(peer int, collectives uint64) bool
	// IsLost reports whether the peer's process exited before the peer left the group.
	IsLost(peer int) bool
}

// Message identifies a call of Send or Recv.
type Message struct {
	// Number counts the calls with this peer and tag from 1.
	Number uint64
	// After is the number of collectives called before.
	After uint64
}

// MessageEnd is the Send or the Recv of a message.
type MessageEnd struct {
	Digest uint64 // hash of the call
	After  uint64 // see Message.After
	Bytes  uint64 // message size
	// Type is the element type, or 0 if one end's type is unknown.
	Type driver.DataType
}

// CompareEnds returns an error if the two ends of a message (its Send and its Recv, call) do not
// match. compareCalls includes types and digests.
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
		err.Fault, ends.Sent, ends.Received = driver.MessagesOutOfStep, sent.After, received.After
	case sent.Bytes != received.Bytes:
		err.Fault, ends.Sent, ends.Received = driver.MessagesDiffer, sent.Bytes, received.Bytes
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

// DescribeMessage describes a Send or Recv in errors. number is Message.Number, or 0 if unknown.
func DescribeMessage(g *driver.GroupConfig, call *driver.Call, number uint64) string {
	preposition, peer, numberText := "to", "any rank", ""
	if call.Operation == driver.Recv {
		preposition = "from"
	}
	if call.Root != driver.AnySource {
		peer = fmt.Sprintf("rank %d of the world", g.Ranks[call.Root])
	}
	if number > 0 {
		numberText = fmt.Sprintf(" %d", number)
	}
	return fmt.Sprintf("%v%s of %d bytes with tag %d %s %s in group %s", call.Operation, numberText,
		call.Count*int64(call.DataType.Size()), call.Tag, preposition, peer, g.Name())
}

// MessageSegment returns the segment of a message: a Send matches only Recvs in its segment. In
// strict groups, each collective begins a segment. after is Message.After.
func MessageSegment(g *driver.GroupConfig, after uint64) uint64 {
	if !g.Strict {
		return 0
	}
	return after
}

// AwaitedRecv describes a Recv without a message. Number is 0 if it is unknown.
type AwaitedRecv struct {
	Source, Tag int
	Number      uint64
}

// UnmatchedError returns an error about the messages left when a group ends, or nil. This rank has
// called no Recv for unreceived messages, and others for those in unreceivedByPeers. Awaited
// messages have not arrived.
func UnmatchedError(
	g *driver.GroupConfig, unreceived []message.Arrival, awaited []AwaitedRecv,
	unreceivedByPeers []driver.MessageEnds,
) error {
	err := &driver.MessageError{
		Fault: driver.MessagesUnmatched, Group: g.Name(), Ends: unreceivedByPeers,
	}
	ownRank := g.Ranks[g.Rank]
	for _, a := range unreceived {
		err.Ends = append(err.Ends, driver.MessageEnds{
			From: g.Ranks[a.Source], To: ownRank, Tag: a.Tag, Number: a.Number, Sent: 1,
		})
	}
	for _, a := range awaited {
		ends := driver.MessageEnds{
			From: driver.AnySource, To: ownRank, Tag: a.Tag, Number: a.Number, Received: 1,
		}
		if a.Source != driver.AnySource {
			ends.From = g.Ranks[a.Source]
		}
		err.Ends = append(err.Ends, ends)
	}
	if len(err.Ends) == 0 {
		return nil
	}
	err.Sort()
	return err
}
