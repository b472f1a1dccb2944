package control

import (
	"fmt"
	"time"

	"symmem/driver"
	"symmem/internal/message"
)

// Messages are numbered from 1 for each sender, receiver and tag: the second Recv from rank 0 with
// tag 5 receives the second Send of rank 0 with tag 5. In a strict group, a Send and its Recv must
// have the same Message.After.

// Messages is an optional interface of a Plane on one machine.
type Messages interface {
	driver.MessageCounts
	// Count numbers a new Send or Recv. Calls for the same peer must be serialized.
	Count(call *driver.Call) Message
	// DiagnoseMessage returns the error of a Recv that has waited since the given time, or nil if the
	// message can still arrive. peer is the sender or AnySource. It also warns of late ranks (see
	// driver.Late).
	DiagnoseMessage(peer int, since time.Time, callText func() string) error
	// HasCalledMore reports whether the peer has called more than the given number of collectives.
	// For AnySource, it reports whether all other ranks have.
	HasCalledMore(peer int, collectives uint64) bool
	// IsLost reports whether the peer's process exited without leaving the group.
	IsLost(peer int) bool
}

// Message identifies a Send or Recv of one rank.
type Message struct {
	// Number counts the rank's calls with the same operation, peer and tag, from 1.
	Number uint64
	// After is the number of collectives that the rank called earlier.
	After uint64
}

// MessageSegment returns after, which is a Message.After, or 0 if the group is not strict.
func MessageSegment(g *driver.GroupConfig, after uint64) uint64 {
	if !g.Strict {
		return 0
	}

	return after
}

// DescribeMessage returns a text such as "Send 3 of 64 bytes with tag 1 to rank 2 of the world in
// group tensor". number is Message.Number, or 0 if unknown.
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
	Type   driver.DataType // 0 unless the types of both ends are known
}

// CompareEnds returns an error if the ends of a message do not match. It compares types and digests
// only if compareCalls is true. call is the Recv, source is the sender's group rank, and number is
// Message.Number.
func CompareEnds(
	g *driver.GroupConfig, sent, received MessageEnd, call *driver.Call, source int, number uint64,
	compareCalls bool,
) error {
	newError := func(fault driver.MessageFault, sentValue, receivedValue uint64) error {
		ends := driver.MessageEnds{
			From: g.Ranks[source], To: g.Ranks[g.Rank], Tag: call.Tag, Number: number,
			Sent: sentValue, Received: receivedValue,
		}
		return &driver.MessageError{
			Fault: fault, Group: g.Name(), Ends: []driver.MessageEnds{ends},
		}
	}
	switch {
	case g.Strict && sent.After != received.After:
		return newError(driver.MessagesOutOfStep, sent.After, received.After)
	case sent.Bytes != received.Bytes:
		return newError(driver.MessagesDiffer, sent.Bytes, received.Bytes)
	case compareCalls && sent.Type != received.Type:
		return newError(driver.MessageTypesDiffer, uint64(sent.Type), uint64(received.Type))
	case compareCalls && sent.Digest != received.Digest:
		return g.Mismatch(number, call, source)
	}

	return nil
}

// AwaitedRecv describes a Recv whose message has not arrived.
type AwaitedRecv struct {
	Source int // group rank or AnySource
	Tag    int
	Number uint64 // Message.Number, or 0 if unknown
}

// UnmatchedError returns an error about unmatched messages when a group ends, or nil if there are
// none: arrived are messages without a Recv of this rank, awaited are Recvs of this rank without a
// message, and sent are messages of this rank without a Recv.
func UnmatchedError(
	g *driver.GroupConfig, arrived []message.Arrival, awaited []AwaitedRecv,
	sent []driver.MessageEnds,
) error {
	err := &driver.MessageError{Fault: driver.MessagesUnmatched, Group: g.Name(), Ends: sent}
	ownRank := g.Ranks[g.Rank]
	for _, arrival := range arrived {
		err.Ends = append(err.Ends, driver.MessageEnds{
			From: g.Ranks[arrival.Source], To: ownRank, Tag: arrival.Tag, Number: arrival.Number,
			Sent: 1, Received: 0,
		})
	}

	for _, recv := range awaited {
		source := driver.AnySource
		if recv.Source != driver.AnySource {
			source = g.Ranks[recv.Source]
		}

		err.Ends = append(err.Ends, driver.MessageEnds{
			From: source, To: ownRank, Tag: recv.Tag, Number: recv.Number,
			Sent: 0, Received: 1,
		})
	}

	if len(err.Ends) == 0 {
		return nil
	}

	err.Sort()
	return err
}
