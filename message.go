package symmem

import "symmem/driver"

const (
	// AnySource is the peer of a Recv that accepts the first message from any rank.
	AnySource = driver.AnySource
	// MaxTag is the largest tag of a message.
	MaxTag = driver.MaxTag
)

// maxMessageEnds limits a rank's report, which must fit into one exchange.
const maxMessageEnds = driver.MaxPayload / 256

// unmatchedPairs returns the pairs of ranks with different counts of sent and received messages. A
// Recv from any source can match any Send, so the receiver's totals for the tag must differ, too.
func unmatchedPairs(ends []MessageEnds) []MessageEnds {
	type pair struct{ src, dst, tag int }
	type end struct{ dst, tag int }
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
		if balance[end{p.dst, p.tag}] != 0 && e.Sent != e.Received {
			merged.Ends = append(merged.Ends, *e)
		}
	}

	merged.Sort()
	return merged.Ends
}
