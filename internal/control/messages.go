package control

import (
	"fmt"
	"time"

	"symmem/driver"
	"symmem/internal/message"
)

// Messages is an optional interface of a Plane whose ranks are on one machine. It counts the
// messages that this rank sends and receives, and diagnoses messages that do not arrive. The data
// of the messages does not pass through the plane. In strict groups, Compare also compares the
// message counts of all ranks.
type Messages interface {
	driver.MessageCounts
	// Count assigns a number to a Send or Recv at the time of its call. Calls of Count with the
	// same peer must be serialized.
	Count(call *driver.Call) Message
	// DiagnoseMessage returns nil unless the message that this rank is waiting for may never
	// arrive. The error is a RankLostError, TimeoutError, DeadlockError or PeerError. since is the
	// time at which the wait began, and peer may be AnySource. DiagnoseMessage also warns of late
	// ranks.
	DiagnoseMessage(peer int, since time.Time, doing func() string) error
	// CalledMore reports whether the peer has called more than the given number of collectives.
	// For AnySource, every other rank must have done so. If CalledMore returns true, all messages
	// that were announced before those collectives can be read.
	CalledMore(peer int, collectives uint64) bool
	// Lost reports whether the process of a group rank has exited.
	Lost(peer int) bool
}

// Message identifies one end of a message, that is, one call of Send or Recv.
type Message struct {
	// Number counts the calls with this peer and tag, from 1.
	Number uint64
	// After is the number of collectives that this rank had called before the Send or Recv.
	After uint64
}

// End describes a Send or Recv whose counterpart on the other rank is known.
type End struct {
	Digest uint64 // of the call
	After  uint64 // number of collectives called before the Send or Recv
	Bytes  uint64 // size of the message
	// Type is the element type. If the type of one end is unknown, Type is 0 at both ends.
	Type driver.DataType
}

// Differ returns an error if the two ends of a message do not match. number and source identify the
// message, and call describes the receive. Types and digests are compared only if check is set.
func Differ(
	g *driver.GroupConfig, sent, received End, call *driver.Call, source int, number uint64,
	check bool,
) error {
	ends := driver.MessageEnds{
		From: g.Ranks[source], To: g.Ranks[g.Rank], Tag: call.Tag, Number: number,
	}
	e := &driver.MessageError{Group: g.Name()}
	switch {
	case g.Strict && sent.After != received.After:
		e.Fault, ends.Sent, ends.Received = driver.MessagesOutOfStep, sent.After, received.After
	case sent.Bytes != received.Bytes:
		e.Fault, ends.Sent, ends.Received = driver.MessagesDiffer, sent.Bytes, received.Bytes
	case check && sent.Type != received.Type:
		e.Fault = driver.MessageTypesDiffer
		ends.Sent, ends.Received = uint64(sent.Type), uint64(received.Type)
	case check && sent.Digest != received.Digest:
		return g.Mismatch(number, call, source)
	default:
		return nil
	}
	e.Ends = []driver.MessageEnds{ends}
	return e
}

// DescribeMessage describes one end of a message for use in errors. number is 0 if the message has
// no number.
func DescribeMessage(g *driver.GroupConfig, call *driver.Call, number uint64) string {
	preposition, peer, ordinal := "to", "any rank", ""
	if call.Operation == driver.Recv {
		preposition = "from"
	}
	if call.Root != driver.AnySource {
		peer = fmt.Sprintf("rank %d of the world", g.Ranks[call.Root])
	}
	if number > 0 {
		ordinal = fmt.Sprintf(" %d", number)
	}
	return fmt.Sprintf("%v%s of %d bytes with tag %d %s %s in group %s", call.Operation, ordinal,
		call.Count*int64(call.DataType.Size()), call.Tag, preposition, peer, g.Name())
}

// MessageSegment returns the segment in which a Matcher looks for the message's counterpart.
// after is the number of collectives called before the message. Only strict groups have more
// than one segment.
func MessageSegment(g *driver.GroupConfig, after uint64) uint64 {
	if !g.Strict {
		return 0
	}
	return after
}

// Awaited describes a Recv for which no message has arrived. Number is 0 if it is unknown.
type Awaited struct {
	Source, Tag int
	Number      uint64
}

// Unmatched returns an error that lists the messages left unmatched when a group ends, or nil
// if there are none. unclaimed holds messages that arrived but that this rank never received,
// awaited holds receives for which no message arrived, and untaken holds messages that another
// rank had not received when it left.
func Unmatched(
	g *driver.GroupConfig, unclaimed []message.Arrival, awaited []Awaited,
	untaken []driver.MessageEnds,
) error {
	e := &driver.MessageError{Fault: driver.MessagesUnmatched, Group: g.Name(), Ends: untaken}
	me := g.Ranks[g.Rank]
	for _, a := range unclaimed {
		e.Ends = append(e.Ends, driver.MessageEnds{
			From: g.Ranks[a.Source], To: me, Tag: a.Tag, Number: a.Number, Sent: 1,
		})
	}
	for _, a := range awaited {
		ends := driver.MessageEnds{
			From: driver.AnySource, To: me, Tag: a.Tag, Number: a.Number, Received: 1,
		}
		if a.Source != driver.AnySource {
			ends.From = g.Ranks[a.Source]
		}
		e.Ends = append(e.Ends, ends)
	}
	if len(e.Ends) == 0 {
		return nil
	}
	e.Sort()
	return e
}
