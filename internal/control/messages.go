package control

import (
	"fmt"
	"time"

	"symmem/driver"
	"symmem/internal/message"
)

// Messages is an optional interface of a Plane whose ranks are on one machine. It counts this
// rank's messages and diagnoses messages that do not arrive. The messages' data does not pass
// through the plane. In strict groups Compare also compares all ranks' message counts.
type Messages interface {
	driver.MessageCounts
	// Count numbers a Send or Recv when it is called. Calls with the same peer must be serialized.
	Count(call *driver.Call) Message
	// DiagnoseMessage returns the reason why a message may never arrive, or nil. since is the time
	// from which this rank has waited for the message. The error is a RankLostError, TimeoutError,
	// DeadlockError or PeerError. DiagnoseMessage also warns of late ranks. peer may be AnySource.
	DiagnoseMessage(peer int, since time.Time, doing func() string) error
	// CalledMore reports whether the peer or, for AnySource, every other rank has called more than
	// the given number of collectives. If so, all messages announced before are readable.
	CalledMore(peer int, collectives uint64) bool
	// Lost reports whether the process of a group rank has ended.
	Lost(peer int) bool
}

// Message identifies one end of a message at the time of its call.
type Message struct {
	// Number counts the calls with this peer and tag, from 1.
	Number uint64
	// After counts the collectives that this rank had called before.
	After uint64
}

// End describes one end of a message whose other end is known.
type End struct {
	Digest uint64 // of the call
	After  uint64 // number of collectives called before
	Bytes  uint64 // size of the message
	// Type is the element type, or 0 at both ends if unknown.
	Type driver.DataType
}

// Differ compares the two ends of a message and returns an error if they do not match. number and
// source identify the message, and call describes the receive. If check is set, Differ also
// compares types and digests.
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

// DescribeMessage describes one end of a message for errors. number is 0 if the message has none.
func DescribeMessage(g *driver.GroupConfig, call *driver.Call, number uint64) string {
	preposition, peer, which := "to", "any rank", ""
	if call.Operation == driver.Recv {
		preposition = "from"
	}
	if call.Root != driver.AnySource {
		peer = fmt.Sprintf("rank %d of the world", g.Ranks[call.Root])
	}
	if number > 0 {
		which = fmt.Sprintf(" %d", number)
	}
	return fmt.Sprintf("%v%s of %d bytes with tag %d %s %s in group %s", call.Operation, which,
		call.Count*int64(call.DataType.Size()), call.Tag, preposition, peer, g.Name())
}

// MessageSegment returns a message's segment in a Matcher. after counts the collectives called
// before the message. Only strict groups have more than one segment.
func MessageSegment(g *driver.GroupConfig, after uint64) uint64 {
	if !g.Strict {
		return 0
	}
	return after
}

// Awaited describes a Recv without a message. Number is 0 if it is unknown.
type Awaited struct {
	Source, Tag int
	Number      uint64
}

// Unmatched returns an error that lists the unmatched messages at the end of a group: messages that
// arrived and were not received, receives without a message, and messages that a rank had not
// received when it left. It returns nil if there are none.
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
