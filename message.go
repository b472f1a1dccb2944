package symmem

import (
	"context"
	"encoding/json"
	"errors"

	"symmem/driver"
)

const (
	// AnySource is the peer of a Recv that takes from whichever rank sends first.
	AnySource = driver.AnySource
	// MaxTag is the largest tag of a message.
	MaxTag = driver.MaxTag
)

// Messages go from one rank of a group to another. The k-th Send of a pair of ranks with a tag
// belongs to the k-th Recv with it, in the order of calls of each rank, whatever the streams. Both
// directions go at once, at any size: a Send whose Recv is not there yet copies what is left of the
// message and lets the stream go on. What is unmatched when the group closes is a MessageError, and
// where messages are in order with collectives (Options.UnorderedMessages) a forgotten one is found
// at the next collective.
//
// On GPUs, which need to be of one machine for that, each message waits in memory of the sender's
// GPU: a Send that finds none is ErrOutOfMemory, and sends nothing. Of a pair 1024 messages may be
// under way; the next Send waits until one is received. A Send in a graph has its place and
// memory for as long as the graph, so in a replay its stream waits until the message of the replay
// before was received, and a Send that finds all places held by graphs is ErrUnsupported.

// SendTagged sends count elements to a peer of the group, which calls RecvTagged with the same tag,
// from 0 to MaxTag.
func (g *Group) SendTagged(
	ctx context.Context, send Memory, count int64, t DataType, peer, tag int, s *Stream,
) error {
	return g.run(ctx, s, &request{
		operation: driver.Send, send: send, count: count, dataType: t, root: peer,
	}, &extras{tag: tag})
}

// RecvTagged receives count elements from a peer of the group, or from AnySource, which calls
// SendTagged with the same tag. Receives of a tag get their messages in the order of their calls;
// one from AnySource takes the message that arrives first, and later ones of the tag wait for that.
// Interop.Do with Call.Arrived tells whose it is.
func (g *Group) RecvTagged(
	ctx context.Context, recv Memory, count int64, t DataType, peer, tag int, s *Stream,
) error {
	return g.run(ctx, s, &request{
		operation: driver.Recv, recv: recv, count: count, dataType: t, root: peer,
	}, &extras{tag: tag})
}

// checkMessage refuses what only messages and uneven exchanges have, and what they cannot do.
func (g *Group) checkMessage(r *wholeRequest) error {
	switch {
	case r.tag < 0 || r.tag > MaxTag:
		return invalid("tag %d is not between 0 and %d", r.tag, MaxTag)
	case r.tag > 0 && !r.operation.PointToPoint():
		return invalid("tag %d: only messages have tags", r.tag)
	case r.arrived != nil && r.operation != driver.Recv:
		return invalid("only a Recv says whose message has arrived")
	case (r.splits != nil) != (r.operation == driver.AllToAllV):
		return invalid("splits are for AllToAllV, which needs them")
	case r.splits == nil:
		return nil
	case r.count != 0:
		return invalid("count %d: AllToAllV has the counts of its splits", r.count)
	}
	if err := r.splits.Validate(len(g.ranks)); err != nil {
		return invalid("%v", err)
	}
	return nil
}

// messages is how messages are ordered, as ranks compare it.
func (o Options) messages() string {
	if o.UnorderedMessages {
		return "unordered"
	}
	return "in order with collectives"
}

// concludeMessages makes one error of what ranks have found about messages. If they do not match at
// a collective, all ranks tell how many they have sent and received before it.
func (g *Group) concludeMessages(cause error, reports []report) error {
	first := reports[0].Messages
	if first == nil {
		return cause
	}
	counts, ok := g.comm.(driver.MessageCounts)
	if first.Fault != driver.MessagesUnmatched || first.Sequence == 0 || !ok {
		return first
	}
	ends := append([]MessageEnds{}, counts.MessagesBefore(first.Sequence)...)
	if len(ends) > maxEnds {
		ends = nil // which tells that there are too many
	}
	mine, err := json.Marshal(ends)
	if err != nil {
		return errors.Join(first, err)
	}
	got, err := g.meet(context.Background(), mine)
	if err != nil {
		return errors.Join(first, err)
	}
	var all []MessageEnds
	complete := true
	for _, m := range got {
		var theirs []MessageEnds
		complete = complete && json.Unmarshal(m, &theirs) == nil && theirs != nil
		all = append(all, theirs...)
	}
	merged := *first
	merged.Ends = nil
	if complete {
		merged.Ends = unmatched(all)
	}
	return &merged
}

// maxEnds is how many pairs and tags a rank lists: as many as fit into one exchange. With more, the
// error does not say which messages do not match.
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
