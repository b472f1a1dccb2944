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

// MessageFault names the kind of mismatch in a MessageError.
type MessageFault string

// The kinds of mismatch in a MessageError. Their comments state the meaning of MessageEnds.Sent and
// Received.
const (
	// MessagesUnmatched: a Send has no Recv, or a Recv no Send. Sent and Received count the calls.
	MessagesUnmatched MessageFault = "unmatched"
	// MessagesOutOfStep: the ends of a message are between different collectives. Sent and Received
	// count the collectives before them.
	MessagesOutOfStep MessageFault = "out of step"
	// MessagesDiffer: the ends of a message have different sizes. Sent and Received are in bytes.
	MessagesDiffer MessageFault = "sizes differ"
	// MessageTypesDiffer: the ends of a message have different data types, which ranks notice if they
	// compare calls. Sent and Received are DataTypes.
	MessageTypesDiffer MessageFault = "types differ"
	// SplitsDiffer: one rank of an AllToAllV sends a number of elements that its peer does not expect.
	// Sent and Received are in elements.
	SplitsDiffer MessageFault = "splits differ"
)

// MessageError reports that the ends of messages do not match: one is missing, or they differ in
// size, data type, splits or position among the collectives.
type MessageError struct {
	// Fault names the kind of mismatch.
	Fault MessageFault
	// Group is the id of the group.
	Group string
	// Number is the number of the collective that noticed the mismatch, from 1, or 0 if none did.
	Number uint64
	// Ends lists the messages, ordered by From, To, Tag and Number.
	Ends []MessageEnds
}

// MessageEnds describes both ends of a message, or of all messages of a pair of ranks with one tag.
type MessageEnds struct {
	// From and To are world ranks. From is AnySource for a Recv from any rank that has received no
	// message.
	From int `json:"from"`
	To   int `json:"to"`
	// Tag is the tag of the messages.
	Tag int `json:"tag"`
	// Number counts the messages of the pair with this tag, from 1; 0 stands for all of them.
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
