package chaos

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"symmem"
)

var messages = kind{
	programsPerWorld: 10, timeLimit: 4 * time.Minute,
	drawWorld: func(t *task) (int, symmem.Options) {
		l := t.messagesLayout()
		return l.ranks, symmem.Options{
			// no correct program waits this long
			Check: symmem.CheckEvery, Timeout: time.Minute, UnorderedMessages: l.isUnordered,
		}
	},
	openPerformer: openPlayer((*task).messages),
	describe: func(t *task, number int) fmt.Stringer {
		p, _ := t.messages(number)
		return p
	},
}

// messagesLayout draws a world with two more groups: the even ranks and the odd ranks.
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
	l.isUnordered = d.IntN(3) == 0
	return l
}

// messages draws a program of messages and collectives. In unordered layouts, a message may be sent
// before a collective but received after it.
func (t *task) messages(number int) (*program, mistake) {
	d := newDraws(t.Seed, number)
	g := newGenerator(d, t.messagesLayout())
	foreign := d.IntN(2) == 0 && !t.GPU
	large := d.IntN(20) == 0
	anyBytes := 4 * d.IntN(5000) // length of all messages from AnySource
	for i := range 8 + d.IntN(30) {
		members := g.p.groups[0]
		o := op{group: d.IntN(len(g.p.groups)), stream: d.IntN(streamCount)}
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
		o.kind, o.recvStream, o.count = sendOp, d.IntN(streamCount), drawBytes(d, large && i == 3)
		o.message = message{src: members[order[0]], dst: members[order[1]], tag: d.IntN(tagCount)}
		if o.message.anySource = d.IntN(8) == 0; o.message.anySource {
			o.count, o.message.tag = anyBytes, anyTag
		}
		if source := g.drawForwarded(&o); source != nil {
			o.send, o.count = source.recv, min(o.count, source.count)
		} else {
			o.send = g.buffer(o.count+gapBytes, foreign)
		}
		o.message.isInt32 = o.count%4 == 0 && !o.message.anySource && d.IntN(2) == 0
		o.recv = g.buffer(o.count+gapBytes, foreign)
		g.addOrdered(o)
	}
	g.shuffle()
	return &g.p, mistake{}
}

const (
	tagCount = 3
	// anyTag is the tag of all messages from AnySource.
	anyTag = 7
	// gapBytes is the number of bytes after a message in its buffer, which must not change.
	gapBytes = 64
)

// drawBytes draws the length of a message, which exceeds 1 MiB if large is set.
func drawBytes(d *rand.Rand, large bool) int {
	if large {
		return 1<<20 + d.IntN(7<<20)
	}
	return d.IntN(1 + []int{0, 64, 4 << 10, 64 << 10, 64 << 10, 256 << 10, 1 << 20}[d.IntN(7)])
}

// drawForwarded returns the last message that the sender of o has received, to be forwarded, or nil
// in two of three cases.
func (g *generator) drawForwarded(o *op) *op {
	if o.message.anySource || g.IntN(3) != 0 {
		return nil
	}
	for i := len(g.p.ops) - 1; i >= 0; i-- {
		s := &g.p.ops[i]
		if s.kind == sendOp && !s.message.anySource && s.message.dst == o.message.src {
			return s
		}
	}
	return nil
}

// Ranks exchange and forward messages on any stream, between collectives. They may reorder calls
// with different peers. All messages and sums must be correct, and no call may return an error.
func TestMessages(t *testing.T) { messages.test(t, 40, task{Kind: "messages"}, nil) }

func TestMessagesOnAGPU(t *testing.T) { messages.testOnAGPU(t, 20, task{Kind: "messages"}) }
