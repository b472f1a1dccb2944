package symmem

import "symmem/driver"

const (
	// AnySource is the peer of a Recv that takes from whichever rank sends first.
	AnySource = driver.AnySource
	// MaxTag is the largest tag of a message.
	MaxTag = driver.MaxTag
)

// messages names the order of messages, which ranks compare.
func (o Options) messages() string {
	if o.UnorderedMessages {
		return "unordered"
	}
	return "in order with collectives"
}

// maxEnds limits the pairs and tags that a rank lists, so that they fit into one exchange. If there
// are more, the error does not list the messages.
const maxEnds = driver.MaxPayload / 256

// unmatched adds up what ranks have sent and received, and lists the pairs in which that differs.
// Of the messages to a rank with a tag, those that are received from any source may be of any pair.
func unmatched(ends []MessageEnds) []MessageEnds {
	type pair struct{ from, to, tag int }
	type end struct{ to, tag int }
	pairs, balance := map[pair]*MessageEnds{}, map[end]int64{}
	for _, e := range ends {
		p := pair{e.From, e.To, e.Tag}
		if pairs[p] == nil {
			pairs[p] = &MessageEnds{From: e.From, To: e.To, Tag: e.Tag}
		}
		pairs[p].Sent += e.Sent
		pairs[p].Received += e.Received
		balance[end{e.To, e.Tag}] += int64(e.Sent) - int64(e.Received)
	}
	merged := MessageError{}
	for p, e := range pairs {
		if balance[end{p.to, p.tag}] != 0 && e.Sent != e.Received {
			merged.Ends = append(merged.Ends, *e)
		}
	}
	merged.Sort()
	return merged.Ends
}
