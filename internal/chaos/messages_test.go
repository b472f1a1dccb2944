package chaos

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"symmem"
)

var messages = kind{
	perWorld: 10, limit: 4 * time.Minute,
	world: func(t *task) (int, symmem.Options) {
		l := t.messagesLayout()
		return l.ranks, symmem.Options{
			// A correct program never waits this long.
			Check: symmem.CheckEvery, Timeout: time.Minute, UnorderedMessages: l.unordered,
		}
	},
	open: openPlayer((*task).messages),
	show: func(t *task, number int) fmt.Stringer {
		p, _ := t.messages(number)
		return p
	},
}

// messagesLayout draws a world with two further groups: the even ranks and the odd ranks.
func (t *task) messagesLayout() layout {
	d := t.worldDraws()
	ranks := 2 + d.IntN(7)
	if t.GPU {
		ranks = 2 + ranks%3
	}
	colors := make([]int, ranks)
	for r := range colors {
		colors[r] = r % 2
	}
	l := newLayout(ranks, colors)
	l.unordered = d.IntN(3) == 0
	return l
}

// messages draws a program of messages and collectives. If the layout allows unordered messages,
// a message may be sent before a collective but received after it.
func (t *task) messages(number int) (*program, mistake) {
	d := newDraws(t.Seed, number)
	g := newGenerator(d, t.messagesLayout())
	foreign := d.IntN(2) == 0 && !t.GPU
	large := d.IntN(20) == 0
	anyBytes := 4 * d.IntN(5000) // all messages received from AnySource have the same length
	for i := range 8 + d.IntN(30) {
		members := g.p.groups[0]
		o := op{group: d.IntN(len(g.p.groups)), stream: d.IntN(streams)}
		if o.group > 0 {
			members = g.p.groups[o.group]
		}
		if o.recvStream = o.stream; len(members) < 2 || d.IntN(5) == 0 {
			o.kind, o.count = allReduce, 2
			o.send, o.recv = g.buffer(64, foreign), g.buffer(64, foreign)
			g.addOrdered(o)
			continue
		}
		order := d.Perm(len(members))
		o.kind, o.recvStream, o.count = send, d.IntN(streams), drawBytes(d, large && i == 3)
		o.message = message{src: members[order[0]], dst: members[order[1]], tag: d.IntN(tags)}
		if o.message.anySource = d.IntN(8) == 0; o.message.anySource {
			o.count, o.message.tag = anyBytes, anyTag
		}
		if source := g.drawForwarded(&o); source != nil {
			o.send, o.count = source.recv, min(o.count, source.count)
		} else {
			o.send = g.buffer(o.count+gap, foreign)
		}
		o.message.wide = o.count%4 == 0 && !o.message.anySource && d.IntN(2) == 0
		o.recv = g.buffer(o.count+gap, foreign)
		g.addOrdered(o)
	}
	g.shuffle()
	return &g.p, mistake{}
}

const (
	// tags is the number of tags used for messages that are received from a specific source.
	tags = 3
	// anyTag is the tag of all messages received from AnySource.
	anyTag = 7
	// gap is the number of bytes between a message and the end of its buffer. These bytes must not
	// change.
	gap = 64
)

// drawBytes draws the length of a message. It exceeds 1 MiB if large is set, and is usually much
// smaller if not.
func drawBytes(d *rand.Rand, large bool) int {
	if large {
		return 1<<20 + d.IntN(7<<20)
	}
	return d.IntN(1 + []int{0, 64, 4 << 10, 64 << 10, 64 << 10, 256 << 10, 1 << 20}[d.IntN(7)])
}

// drawForwarded returns the last message that the sender of o has received, so that o can
// forward it. In two of three cases, it returns nil, so that o sends new data.
func (g *generator) drawForwarded(o *op) *op {
	if o.message.anySource || g.IntN(3) != 0 {
		return nil
	}
	for i := len(g.p.ops) - 1; i >= 0; i-- {
		s := &g.p.ops[i]
		if s.kind == send && !s.message.anySource && s.message.dst == o.message.src {
			return s
		}
	}
	return nil
}

// TestMessages runs programs whose ranks exchange and forward messages on any stream, between
// collectives. A rank may reorder calls that have different peers. All messages and sums must be
// correct, and no call may return an error.
func TestMessages(t *testing.T) { messages.test(t, 40, task{Kind: "messages"}, nil) }

func TestMessagesOnAGPU(t *testing.T) { messages.testOnAGPU(t, 20, task{Kind: "messages"}) }
