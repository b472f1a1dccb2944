package control

import (
	"fmt"
	"time"

	"symmem/driver"
	"symmem/internal/message"
)

// Messages is what a Plane can do in addition if its ranks are on one machine: it counts the
// messages of its rank, and knows what a message that does not come is waiting for. The data moves
// elsewhere, as that of collectives does. Compare also compares the counts of all ranks, in strict
// groups.
type Messages interface {
	driver.MessageCounts
	// Count numbers a Send or Recv at its call. Calls with one peer are made one at a time.
	Count(call *driver.Call) Message
	// DiagnoseMessage says why a message for which this rank waits since a given time may never
	// come, or nil: a RankLostError, TimeoutError, DeadlockError or PeerError. It warns of ranks that
	// are late. The peer may be AnySource.
	DiagnoseMessage(peer int, since time.Time, doing func() string) error
	// CalledMore reports whether a rank of the group, or all others for AnySource, have called more
	// collectives than that. What they had announced of messages before can be read then.
	CalledMore(peer int, collectives uint64) bool
	// Lost reports whether the process of a rank of the group has ended.
	Lost(peer int) bool
}

// Message is what is known of one end of a message at its call.
type Message struct {
	// Number counts the calls with this peer and tag, from 1.
	Number uint64
	// After is how many collectives this rank had called before.
	After uint64
}

// End is one end of a message whose other end is known.
type End struct {
	// Digest is that of the call, After how many collectives its rank had called before.
	Digest, After uint64
	// Bytes is the size of the message.
	Bytes uint64
	// Type is that of the elements; 0 at both ends where it is not known.
	Type driver.DataType
}

// Differ compares the two ends of a message, of which the given call receives, and check reports
// whether digests are compared. The number is that of the message.
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

// DescribeMessage names one end of a message in errors; the number is 0 if it has none.
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

// MessageSegment is what a Matcher is told of a message that was called behind so many collectives.
func MessageSegment(g *driver.GroupConfig, after uint64) uint64 {
	if !g.Strict {
		return 0
	}
	return after
}

// Awaited is a Recv that has no message. Number is 0 unless it is known which one would be its.
type Awaited struct {
	Source, Tag int
	Number      uint64
}

// Unmatched says which messages end with a group: those that have come and that nobody has
// received, receives that have none, and what ranks that have left did not take. It is nil if there
// are none.
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
