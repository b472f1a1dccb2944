package chaos

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"symmem"
)

// messages is the kind of programs that exchange messages; see TestMessages.
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

// messages draws a program of messages and collectives. In unordered layouts, a message may be
// sent before a collective but received after it.
func (t *task) messages(number int) (*program, mistake) {
	d := newDraws(t.Seed, number)
	g := newGenerator(d, t.messagesLayout())
	isForeign := d.IntN(2) == 0 && !t.GPU // whether all buffers are outside the pool
	hasLargeMessage := d.IntN(20) == 0
	const largeIndex = 3               // index of the op that is large, if it is a message
	anySourceBytes := 4 * d.IntN(5000) // size of each message from AnySource
	for i := range 8 + d.IntN(30) {
		o := op{group: d.IntN(len(g.p.groups)), stream: d.IntN(streamCount)}
		members := g.p.groups[o.group]
		o.recvStream = o.stream
		if len(members) < 2 || d.IntN(5) == 0 {
			const bufferBytes = 64 // more than the two elements need
			o.kind, o.count = allReduce, 2
			o.send, o.recv = g.buffer(bufferBytes, isForeign), g.buffer(bufferBytes, isForeign)
			g.addOrdered(o)
			continue
		}

		order := d.Perm(len(members)) // two different members
		o.kind = sendOp
		o.recvStream = d.IntN(streamCount)
		isLarge := hasLargeMessage && i == largeIndex
		o.count = drawBytes(d, isLarge)
		o.message = message{src: members[order[0]], dst: members[order[1]], tag: d.IntN(tagCount)}
		o.message.anySource = d.IntN(8) == 0
		if o.message.anySource {
			o.count, o.message.tag = anySourceBytes, anyTag
		}

		// The sender either forwards a message that it has received before, or has a new buffer.
		if received := g.drawForwarded(&o); received != nil {
			o.send, o.count = received.recv, min(o.count, received.count)
		} else {
			o.send = g.buffer(o.count+gapBytes, isForeign)
		}

		o.message.isInt32 = o.count%4 == 0 && !o.message.anySource && d.IntN(2) == 0
		o.recv = g.buffer(o.count+gapBytes, isForeign)
		g.addOrdered(o)
	}

	g.shuffle()
	return &g.p, mistake{}
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

// drawForwarded returns the message that o forwards: the last message that the sender of o has
// received from a known source. In two of three cases, it returns nil, so that o forwards no
// message.
func (g *generator) drawForwarded(o *op) *op {
	if o.message.anySource || g.IntN(3) != 0 {
		return nil
	}

	for i := len(g.p.ops) - 1; i >= 0; i-- {
		earlier := &g.p.ops[i]
		if earlier.kind == sendOp && !earlier.message.anySource &&
			earlier.message.dst == o.message.src {
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
