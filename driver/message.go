package driver

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// AnySource as the Root of a Recv selects the first message with the tag from any rank.
const AnySource = -1

// MessageFault is the kind of mismatch in a MessageError.
type MessageFault string

// The kinds of mismatch. Each determines the meaning of MessageEnds.Sent and Received.
const (
	// MessagesUnmatched: a Send has no Recv, or a Recv has no Send. Sent and Received count the calls.
	MessagesUnmatched MessageFault = "unmatched"
	// MessagesOutOfStep: the ends of a message were called between different collectives. Sent and
	// Received count the collectives before each end.
	MessagesOutOfStep MessageFault = "out of step"
	// MessagesDiffer: the ends of a message have different sizes. Sent and Received are the sizes in
	// bytes.
	MessagesDiffer MessageFault = "sizes differ"
	// MessageTypesDiffer: the ends of a message have different data types. Ranks detect this only if
	// they compare calls. Sent and Received are DataTypes.
	MessageTypesDiffer MessageFault = "types differ"
	// SplitsDiffer: a rank of an AllToAllV sends more or fewer elements than its peer expects. Sent
	// and Received are the two numbers.
	SplitsDiffer MessageFault = "splits differ"
)

// MessageError reports that the two ends of messages do not match: one end is missing, or the ends
// differ in size, data type, splits or position among the collectives.
type MessageError struct {
	// Fault names the kind of mismatch.
	Fault MessageFault
	// Group is the group's id.
	Group string
	// Number is the number, from 1, of the collective that detected the mismatch. It is 0 if no
	// collective did.
	Number uint64
	// Ends lists the messages, ordered by From, To, Tag and Number.
	Ends []MessageEnds
}

// MessageEnds describes both ends of a message, or of all messages of a pair of ranks with one tag.
type MessageEnds struct {
	// From and To are world ranks. From is AnySource if a Recv with AnySource has received no message.
	From int `json:"from"`
	To   int `json:"to"`
	// Tag is the messages' tag.
	Tag int `json:"tag"`
	// Number counts the pair's messages with this tag, from 1. It is 0 if the ends stand for all of
	// them.
	Number uint64 `json:"number,omitempty"`
	// Sent describes the message on the sender; see MessageFault.
	Sent uint64 `json:"sent"`
	// Received describes the message on the receiver; see MessageFault.
	Received uint64 `json:"received"`
}

// Sort orders the ends by From, To, Tag and Number.
func (e *MessageError) Sort() {
	slices.SortFunc(e.Ends, func(a, b MessageEnds) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), cmp.Compare(a.Tag, b.Tag),
			cmp.Compare(a.Number, b.Number))
	})
}

// maxEnds limits the number of MessageEnds that an error's text lists.
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
