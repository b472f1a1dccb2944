package driver

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// AnySource is the Root of a Recv that accepts messages from any rank.
const AnySource = -1

// MessageError reports messages whose Send and Recv do not match.
type MessageError struct {
	Fault MessageFault
	Group string // name for error texts
	// Number is that of the group's collective, from 1, that detected the mismatch, or 0.
	Number uint64
	Ends   []MessageEnds
}

// MessageEnds compares the Send and the Recv of one message, or of all messages between two ranks
// with a tag. For example, rank 0 sends two messages with tag 3 to rank 1, which receives only one:
// From is 0, To is 1, Tag is 3, Sent is 2, and Received is 1.
type MessageEnds struct {
	// From and To are world ranks (numbers among all processes). From is AnySource for an unmatched
	// Recv from any rank.
	From int `json:"from"`
	To   int `json:"to"`
	Tag  int `json:"tag"`
	// Number is the message's number, from 1, among those with this From, To and Tag. It is 0 if
	// all of them are compared.
	Number   uint64 `json:"number,omitempty"`
	Sent     uint64 `json:"sent"`     // see MessageFault
	Received uint64 `json:"received"` // see MessageFault
}

// MessageFault is a mismatch between a Send and a Recv. It determines what MessageEnds.Sent and
// MessageEnds.Received contain.
type MessageFault string

// The faults of messages.
const (
	// MessagesUnmatched means that a Send or Recv has no counterpart. Sent and Received count calls.
	MessagesUnmatched MessageFault = "unmatched"
	// MessagesOutOfStep means that a Send and its Recv follow different numbers of collectives.
	// Sent and Received are these numbers.
	MessagesOutOfStep MessageFault = "out of step"
	// MessagesDiffer means that a Send and its Recv have different sizes. Sent and Received are
	// bytes.
	MessagesDiffer MessageFault = "sizes differ"
	// MessageTypesDiffer means that a Send and its Recv have different types. Sent and Received are
	// DataTypes.
	MessageTypesDiffer MessageFault = "types differ"
	// SplitsDiffer means that the sender and the receiver of a part in an AllToAllV specify
	// different sizes. Sent and Received are elements.
	SplitsDiffer MessageFault = "splits differ"
)

// Sort sorts Ends by From, To, Tag and Number.
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

func (e MessageEnds) describe(fault MessageFault) string {
	messages := e.describeMessages(fault)
	switch fault {
	case MessagesUnmatched:
		return fmt.Sprintf("%s: %d sent and %d received", messages, e.Sent, e.Received)
	case MessagesOutOfStep:
		return fmt.Sprintf("%s: sent after %s and received after %d", messages,
			Plural(e.Sent, "collective"), e.Received)
	case MessageTypesDiffer:
		return fmt.Sprintf("%s: sent as %v and received as %v", messages, DataType(e.Sent),
			DataType(e.Received))
	case SplitsDiffer:
		return fmt.Sprintf("%s: %d elements are sent and %d are expected", messages, e.Sent, e.Received)
	default: // MessagesDiffer
		return fmt.Sprintf("%s: %d bytes are sent and %d are expected", messages, e.Sent, e.Received)
	}
}

// describeMessages returns a text such as "message 2 from rank 0 of the world to rank 1 of the
// world with tag 3".
func (e MessageEnds) describeMessages(fault MessageFault) string {
	ranks := e.describeRanks()
	switch {
	case fault == SplitsDiffer: // an AllToAllV has no tags
		return ranks
	case e.Number > 0:
		return fmt.Sprintf("message %d %s with tag %d", e.Number, ranks, e.Tag)
	default:
		return fmt.Sprintf("%s with tag %d", ranks, e.Tag)
	}
}

func (e MessageEnds) describeRanks() string {
	if e.From == AnySource {
		return fmt.Sprintf("from any rank to rank %d of the world", e.To)
	}

	return fmt.Sprintf("from rank %d of the world to rank %d of the world", e.From, e.To)
}
