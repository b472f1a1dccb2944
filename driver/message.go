package driver

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// AnySource is the Root of a Recv that takes the next message with its tag from whichever rank
// sends one first.
const AnySource = -1

// MessageFault says in what the two ends of messages do not fit together.
type MessageFault string

// The faults of messages.
const (
	// MessagesUnmatched is a Send without its Recv, or a Recv without its Send. The numbers of ends
	// are how many of each a pair has called.
	MessagesUnmatched MessageFault = "unmatched"
	// MessagesOutOfStep is a message that was sent between other collectives than it was received
	// between. The numbers of ends are how many collectives each rank had called before.
	MessagesOutOfStep MessageFault = "out of step"
	// MessagesDiffer is a message whose ends have different sizes. The numbers of ends are bytes.
	MessagesDiffer MessageFault = "sizes differ"
	// MessageTypesDiffer is a message that is sent with another type of elements than it is received
	// with, where calls are compared. The numbers of ends are DataTypes.
	MessageTypesDiffer MessageFault = "types differ"
	// SplitsDiffer is an AllToAllV in which one rank sends another number of elements than the other
	// expects. The numbers of ends are elements.
	SplitsDiffer MessageFault = "splits differ"
)

// MessageError says that the two ends of messages between ranks of a group do not fit together.
type MessageError struct {
	// Fault says in what.
	Fault MessageFault
	// Group is the id of the group.
	Group string
	// Number is that of the collective at which it was found, from 1, or 0.
	Number uint64
	// Ends lists the messages, ordered by From, To, Tag and Number.
	Ends []MessageEnds
}

// MessageEnds are the two ends of a message, or of all messages of a pair with one tag.
type MessageEnds struct {
	// From and To are world ranks. From is AnySource for a Recv from any rank that has taken nothing.
	From int `json:"from"`
	To   int `json:"to"`
	// Tag is that of the messages.
	Tag int `json:"tag"`
	// Number is which message of the pair and the tag it is, from 1, or 0 for all of them.
	Number uint64 `json:"number,omitempty"`
	// Sent and Received describe the message on the sender and on the receiver: see MessageFault.
	Sent     uint64 `json:"sent"`
	Received uint64 `json:"received"`
}

// Sort orders the ends by From, To, Tag and Number.
func (e *MessageError) Sort() {
	slices.SortFunc(e.Ends, func(a, b MessageEnds) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), cmp.Compare(a.Tag, b.Tag),
			cmp.Compare(a.Number, b.Number))
	})
}

// maxEnds is how many ends the text of an error lists.
const maxEnds = 8

func (e *MessageError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "messages of group %s: %s", e.Group, e.Fault)
	if e.Number > 0 {
		fmt.Fprintf(&b, " at collective %d", e.Number)
	}
	for i, ends := range e.Ends {
		if i == maxEnds {
			fmt.Fprintf(&b, "; and %d more", len(e.Ends)-maxEnds)
			break
		}
		b.WriteString("; ")
		b.WriteString(ends.describe(e.Fault))
	}
	return b.String()
}

// describe says what one pair of ends has.
func (m MessageEnds) describe(fault MessageFault) string {
	from := fmt.Sprintf("rank %d of the world", m.From)
	if m.From == AnySource {
		from = "any rank"
	}
	pair := fmt.Sprintf("%s to rank %d of the world", from, m.To)
	if m.Number > 0 {
		pair = fmt.Sprintf("message %d from %s with tag %d", m.Number, pair, m.Tag)
	} else if fault != SplitsDiffer {
		pair = fmt.Sprintf("from %s with tag %d", pair, m.Tag)
	}
	switch fault {
	case MessagesUnmatched:
		return fmt.Sprintf("%s: %d sent and %d received", pair, m.Sent, m.Received)
	case MessagesOutOfStep:
		return fmt.Sprintf("%s: sent after %s and received after %d", pair,
			Plural(m.Sent, "collective"), m.Received)
	case MessageTypesDiffer:
		return fmt.Sprintf("%s: sent as %v and received as %v", pair, DataType(m.Sent),
			DataType(m.Received))
	case SplitsDiffer:
		return fmt.Sprintf("from %s: %d elements are sent and %d are expected", pair, m.Sent,
			m.Received)
	default:
		return fmt.Sprintf("%s: %d bytes are sent and %d are expected", pair, m.Sent, m.Received)
	}
}
