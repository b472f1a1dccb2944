package chaos

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"symmem"
)

// A random program of messages is a list of ops that all ranks perform. For example:
//
//	0  a message of 100 bytes from rank 1 to rank 2, from buffer 0 to buffer 1
//	1  an AllReduce on ranks 0 and 2 (the even ranks), from buffer 2 to buffer 3
//	2  a message of 60 bytes from rank 2 to rank 3, from buffer 1 to buffer 4
//
// Op 2 forwards bytes that rank 2 has received in op 0. A rank may perform ops with different peers
// in another order. A world is a job of several ranks, which performs several programs.

// messages is the kind of these programs.
var messages = kind{
	programsPerWorld: 10, timeLimit: 4 * time.Minute,
	drawWorld: func(t *task) (int, symmem.Options) {
		l := t.messagesLayout()
		return l.ranks, symmem.Options{
			// A minute is longer than any wait of a correct program.
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
		ranks = 2 + ranks%3 // a job on GPUs has 2 to 4 ranks
	}

	colors := make([]int, ranks)
	for r := range colors {
		colors[r] = r % 2
	}

	l := newLayout(ranks, colors)
	l.isUnordered = d.IntN(3) == 0
	return l
}

// messages draws a program of messages and collectives, without a mistake. In unordered layouts, a
// message may be sent before a collective but received after it.
func (t *task) messages(number int) (*program, mistake) {
	d := newDraws(t.Seed, number)
	g := newGenerator(d, t.messagesLayout())
	m := messageDraws{
		isForeign:       d.IntN(2) == 0 && !t.GPU,
		hasLargeMessage: d.IntN(20) == 0,
		anySourceBytes:  4 * d.IntN(5000),
	}
	const largeIndex = 3 // index of the op that is large, if it is a message
	for i := range 8 + d.IntN(30) {
		o := op{group: d.IntN(len(g.p.groups)), stream: d.IntN(streamCount)}
		o.recvStream = o.stream
		hasPeers := len(g.p.groups[o.group]) >= 2
		if !hasPeers || d.IntN(5) == 0 {
			m.completeAllReduce(g, &o)
		} else {
			m.completeMessage(g, &o, m.hasLargeMessage && i == largeIndex)
		}

		g.addOrdered(o)
	}

	g.shuffle()
	return &g.p, mistake{}
}

// messageDraws holds the draws that apply to all messages of a program.
type messageDraws struct {
	isForeign       bool // whether all buffers are outside the pool
	hasLargeMessage bool
	anySourceBytes  int // size of each message that is received from AnySource
}

// completeAllReduce turns an op with a group and a stream into an AllReduce.
func (m *messageDraws) completeAllReduce(g *generator, o *op) {
	const bufferBytes = 64 // more than the two elements need
	o.kind = allReduce
	o.count = 2
	o.send = g.buffer(bufferBytes, m.isForeign)
	o.recv = g.buffer(bufferBytes, m.isForeign)
}

// completeMessage turns an op with a group and a stream into a message.
func (m *messageDraws) completeMessage(g *generator, o *op, isLarge bool) {
	members := g.p.groups[o.group]
	order := g.Perm(len(members)) // two different members come first
	src := members[order[0]]
	dst := members[order[1]]
	o.kind = sendOp
	o.recvStream = g.IntN(streamCount)
	o.count = drawBytes(g.Rand, isLarge)
	o.message = message{src: src, dst: dst, tag: g.IntN(tagCount)}
	o.message.anySource = g.IntN(8) == 0
	if o.message.anySource {
		o.count = m.anySourceBytes
		o.message.tag = anyTag
	}

	// The sender either forwards a message that it has received before, or has a new buffer.
	if received := g.drawForwarded(o); received != nil {
		o.send = received.recv
		o.count = min(o.count, received.count)
	} else {
		o.send = g.buffer(o.count+gapBytes, m.isForeign)
	}

	canBeInt32 := o.count%4 == 0 && !o.message.anySource
	o.message.isInt32 = canBeInt32 && g.IntN(2) == 0
	o.recv = g.buffer(o.count+gapBytes, m.isForeign)
}

const (
	// tagCount is the number of tags of messages with a known source. The tags are 0 to 2.
	tagCount = 3
	// anyTag is the tag of all messages from AnySource. No other message has it.
	anyTag = 7
	// gapBytes is the number of bytes after a message in its buffer, which must not change.
	gapBytes = 64
)

// drawBytes draws the size of a message. A large message has 1 MiB or more.
func drawBytes(d *rand.Rand, isLarge bool) int {
	if isLarge {
		return 1<<20 + d.IntN(7<<20)
	}

	// 64 KiB is listed twice, so that it is more likely than the other limits.
	limits := []int{0, 64, 4 << 10, 64 << 10, 64 << 10, 256 << 10, 1 << 20}
	return d.IntN(1 + limits[d.IntN(len(limits))])
}

// drawForwarded returns the message that o forwards, or nil if o forwards none. In one of three
// cases, o forwards the last message that its sender has received from a known source.
func (g *generator) drawForwarded(o *op) *op {
	if o.message.anySource || g.IntN(3) != 0 {
		return nil
	}

	for i := len(g.p.ops) - 1; i >= 0; i-- {
		earlier := &g.p.ops[i]
		hasKnownSource := earlier.kind == sendOp && !earlier.message.anySource
		if hasKnownSource && earlier.message.dst == o.message.src {
			return earlier
		}
	}

	return nil
}

// TestMessages runs programs in which ranks exchange and forward messages on any stream, between
// collectives. The ranks may reorder calls with different peers. All messages and sums must be
// correct, and no call may return an error.
func TestMessages(t *testing.T) {
	const defaultPrograms = 40
	messages.test(t, defaultPrograms, task{Kind: "messages"}, nil)
}

// TestMessagesOnAGPU is TestMessages with fewer ranks, each of which has a GPU.
func TestMessagesOnAGPU(t *testing.T) {
	const defaultPrograms = 20
	messages.testOnAGPU(t, defaultPrograms, task{Kind: "messages"})
}
