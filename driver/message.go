package driver

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// AnySource is the Root of a Recv that accepts messages from any rank.
const AnySource = -1

// MessageFault is the kind of a MessageError. It determines the meaning of Sent and Received.
type MessageFault string

// The kinds of a MessageError.
const (
	// MessagesUnmatched means that a Send or a Recv has no counterpart. Sent and Received are
	// numbers of calls.
	MessagesUnmatched MessageFault = "unmatched"
	// MessagesOutOfStep means that a Send and its Recv were called after different numbers of
	// collectives, which are in Sent and Received.
	MessagesOutOfStep MessageFault = "out of step"
	// MessagesDiffer means that a Send and its Recv have different sizes. Sent and Received are in
	// bytes.
	MessagesDiffer MessageFault = "sizes differ"
	// MessageTypesDiffer means that a Send and its Recv have different types. Sent and Received are
	// DataTypes.
	MessageTypesDiffer MessageFault = "types differ"
	// SplitsDiffer means that a rank sends more or fewer elements in an AllToAllV than the receiver
	// expects. Sent and Received are numbers of elements.
	SplitsDiffer MessageFault = "splits differ"
)

// MessageError reports messages whose Send and Recv do not match.
type MessageError struct {
	Fault MessageFault
	Group string // name for error texts
	// Number is the number, from 1, of the collective that detected the mismatch, or 0.
	Number uint64
	Ends   []MessageEnds
}

// MessageEnds describes the Send and Recv of one message, or of all messages with a tag from one
// rank to another.
type MessageEnds struct {
	// From and To are world ranks. From can be AnySource if no message has been received.
	From int `json:"from"`
	To   int `json:"to"`
	Tag  int `json:"tag"`
	// Number is the message's number, from 1, for this From, To and Tag, or 0 for all of them.
	Number   uint64 `json:"number,omitempty"`
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

func (m MessageEnds) describe(fault MessageFault) string {
	from := fmt.Sprintf("rank %d of the world", m.From)
	if m.From == AnySource {
		from = "any rank"
	}
	ranksText := fmt.Sprintf("%s to rank %d of the world", from, m.To)
	if m.Number > 0 {
		ranksText = fmt.Sprintf("message %d from %s with tag %d", m.Number, ranksText, m.Tag)
	} else if fault != SplitsDiffer {
		ranksText = fmt.Sprintf("from %s with tag %d", ranksText, m.Tag)
	}
	switch fault {
	case MessagesUnmatched:
		return fmt.Sprintf("%s: %d sent and %d received", ranksText, m.Sent, m.Received)
	case MessagesOutOfStep:
		return fmt.Sprintf("%s: sent after %s and received after %d", ranksText,
			Plural(m.Sent, "collective"), m.Received)
	case MessageTypesDiffer:
		return fmt.Sprintf("%s: sent as %v and received as %v", ranksText, DataType(m.Sent),
			DataType(m.Received))
	case SplitsDiffer:
		return fmt.Sprintf("from %s: %d elements are sent and %d are expected", ranksText, m.Sent,
			m.Received)
	default:
		return fmt.Sprintf("%s: %d bytes are sent and %d are expected", ranksText, m.Sent,
			m.Received)
	}
}
