package driver

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// A message has two ends: a Send on one rank, and a Recv on another. A MessageError reports ends
// that do not match. For example, rank 0 sends two messages with tag 3 to rank 1, but rank 1
// receives only one of them. Then the error is MessagesUnmatched, and its MessageEnds have From 0,
// To 1, Tag 3, Sent 2 and Received 1.

// AnySource is the Root of a Recv that accepts messages from any rank.
const AnySource = -1

// MessageFault is the kind of a MessageError. It determines the meaning of MessageEnds.Sent and
// MessageEnds.Received.
type MessageFault string

// The kinds of a MessageError.
const (
	// MessagesUnmatched means that a Send or a Recv has no counterpart. Sent and Received are
	// numbers of calls.
	MessagesUnmatched MessageFault = "unmatched"
	// MessagesOutOfStep means that a Send and its Recv were called after different numbers of
	// collectives. Sent and Received are these numbers.
	MessagesOutOfStep MessageFault = "out of step"
	// MessagesDiffer means that a Send and its Recv have different sizes. Sent and Received are in
	// bytes.
	MessagesDiffer MessageFault = "sizes differ"
	// MessageTypesDiffer means that a Send and its Recv have different types. Sent and Received are
	// DataTypes.
	MessageTypesDiffer MessageFault = "types differ"
	// SplitsDiffer means that a rank sends more or fewer elements to another rank in an AllToAllV
	// than that rank expects. Sent and Received are numbers of elements.
	SplitsDiffer MessageFault = "splits differ"
)

// MessageEnds describes the two ends of one message, or of all messages with a tag from one rank to
// another.
type MessageEnds struct {
	// From and To are world ranks (numbers among all processes). From is AnySource for a Recv from
	// any rank that has received no message.
	From int `json:"from"`
	To   int `json:"to"`
	Tag  int `json:"tag"`
	// Number is the number, from 1, of one message with this From, To and Tag. It is 0 if the ends
	// describe all of these messages.
	Number uint64 `json:"number,omitempty"`
	// MessageFault defines the meaning of Sent and Received.
	Sent     uint64 `json:"sent"`
	Received uint64 `json:"received"`
}

// MessageError reports messages whose Send and Recv do not match.
type MessageError struct {
	Fault MessageFault
	Group string // name for error texts
	// Number is the number, from 1, of the collective that detected the mismatch. It is 0 if no
	// collective detected it.
	Number uint64
	Ends   []MessageEnds
}

// Sort orders the ends by From, To, Tag and Number.
func (e *MessageError) Sort() {
	slices.SortFunc(e.Ends, func(a, b MessageEnds) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), cmp.Compare(a.Tag, b.Tag),
			cmp.Compare(a.Number, b.Number))
	})
}

const maxListedEnds = 8 // in the text of a MessageError

func (e *MessageError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "messages of group %s: %s", e.Group, e.Fault)
	if e.Number > 0 {
		fmt.Fprintf(&b, " at collective %d", e.Number)
	}

	for i, ends := range e.Ends {
		if i == maxListedEnds {
			fmt.Fprintf(&b, "; and %d more", len(e.Ends)-maxListedEnds)
			break
		}

		b.WriteString("; ")
		b.WriteString(ends.describe(e.Fault))
	}

	return b.String()
}

// describe returns a text such as "from rank 0 of the world to rank 1 of the world with tag 3: 2
// sent and 1 received".
func (m MessageEnds) describe(fault MessageFault) string {
	messages := m.describeMessages(fault)
	switch fault {
	case MessagesUnmatched:
		return fmt.Sprintf("%s: %d sent and %d received", messages, m.Sent, m.Received)
	case MessagesOutOfStep:
		return fmt.Sprintf("%s: sent after %s and received after %d", messages,
			Plural(m.Sent, "collective"), m.Received)
	case MessageTypesDiffer:
		return fmt.Sprintf("%s: sent as %v and received as %v", messages, DataType(m.Sent),
			DataType(m.Received))
	case SplitsDiffer:
		return fmt.Sprintf("%s: %d elements are sent and %d are expected", messages, m.Sent, m.Received)
	default: // MessagesDiffer
		return fmt.Sprintf("%s: %d bytes are sent and %d are expected", messages, m.Sent, m.Received)
	}
}

// describeMessages returns a text such as "message 2 from rank 0 of the world to rank 1 of the
// world with tag 3".
func (m MessageEnds) describeMessages(fault MessageFault) string {
	ranks := m.describeRanks()
	switch {
	case fault == SplitsDiffer: // an AllToAllV has no tags
		return ranks
	case m.Number > 0:
		return fmt.Sprintf("message %d %s with tag %d", m.Number, ranks, m.Tag)
	default:
		return fmt.Sprintf("%s with tag %d", ranks, m.Tag)
	}
}

// describeRanks returns a text such as "from any rank to rank 1 of the world".
func (m MessageEnds) describeRanks() string {
	if m.From == AnySource {
		return fmt.Sprintf("from any rank to rank %d of the world", m.To)
	}

	return fmt.Sprintf("from rank %d of the world to rank %d of the world", m.From, m.To)
}
