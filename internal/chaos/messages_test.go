package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"symmem"
)

// messages describes programs in which ranks exchange messages between collectives. For example,
// rank 1 sends buffer 0 to rank 2. Rank 2 receives the message in buffer 1 and forwards part of it
// to rank 3.
var messages = kind{
	programsPerWorld: 10, timeLimit: 4 * time.Minute,
	drawWorld: func(t *task) (int, symmem.Options) {
		world := t.drawMessagesLayout()
		const timeout = time.Minute // longer than any wait of a correct program
		return world.ranks, symmem.Options{
			Check: symmem.CheckEvery, Timeout: timeout, UnorderedMessages: world.isUnordered,
		}
	},
	openPerformer: openPlayer((*task).drawMessages),
	describe: func(t *task, number int) fmt.Stringer {
		p, _ := t.drawMessages(number)
		return p
	},
}

// drawMessagesLayout draws a world with three groups: all ranks, the even ranks and the odd ranks.
func (t *task) drawMessagesLayout() layout {
	d := t.worldDraws()
	ranks := 2 + d.IntN(7)
	if t.GPU {
		ranks = 2 + ranks%3 // at most 4
	}

	colors := make([]int, ranks) // ranks of the same color form a group
	for rank := range colors {
		colors[rank] = rank % 2
	}

	world := newLayout(ranks, colors)
	world.isUnordered = d.IntN(3) == 0
	return world
}

// drawMessages draws a program without a mistake.
func (t *task) drawMessages(number int) (*program, mistake) {
	d := newDraws(t.Seed, number)
	g := newGenerator(d, t.drawMessagesLayout())
	m := messageDraws{
		isForeign:       d.IntN(2) == 0 && !t.GPU,
		hasLargeMessage: d.IntN(20) == 0,
		anySourceBytes:  4 * d.IntN(5000),
	}
	for i := range 8 + d.IntN(30) {
		o := op{group: d.IntN(len(g.p.groups)), stream: d.IntN(streamCount)}
		o.recvStream = o.stream
		hasPeers := len(g.p.groups[o.group]) >= 2
		isAllReduce := !hasPeers || d.IntN(5) == 0
		if isAllReduce {
			m.completeAllReduce(g, &o)
		} else {
			const largeIndex = 3 // arbitrary; only this op can be large
			isLarge := m.hasLargeMessage && i == largeIndex
			m.completeMessage(g, &o, isLarge)
		}

		g.addOrdered(o)
	}

	g.shuffle() // draws the order in which each rank queues its ops
	return &g.p, mistake{kind: noMistake}
}

// messageDraws holds random choices that apply to a whole program.
type messageDraws struct {
	isForeign       bool // whether all buffers are outside the pool of symmem
	hasLargeMessage bool
	anySourceBytes  int // size of every message for AnySource
}

// completeAllReduce turns o, which has only a group and a stream, into an AllReduce.
func (m *messageDraws) completeAllReduce(g *generator, o *op) {
	const (
		elements    = 2
		bufferBytes = 64 // more than the elements need
	)
	o.kind = allReduce
	o.count = elements
	o.send = g.buffer(bufferBytes, m.isForeign)
	o.recv = g.buffer(bufferBytes, m.isForeign)
}

// completeMessage turns o, which has only a group and a stream, into a message.
func (m *messageDraws) completeMessage(g *generator, o *op, isLarge bool) {
	members := g.p.groups[o.group]
	shuffled := g.Perm(len(members))
	src := members[shuffled[0]]
	dst := members[shuffled[1]]
	o.kind = sendOp
	o.recvStream = g.IntN(streamCount)
	o.count = drawBytes(g.Rand, isLarge)
	o.message = message{src: src, dst: dst, tag: g.IntN(tagCount)}
	o.message.anySource = g.IntN(8) == 0
	if o.message.anySource {
		o.count = m.anySourceBytes
		o.message.tag = anyTag
	}

	forwarded := g.drawForwarded(o)
	if forwarded != nil {
		o.send = forwarded.recv
		o.count = min(o.count, forwarded.count)
	} else {
		o.send = g.buffer(o.count+gapBytes, m.isForeign)
	}

	const int32Bytes = 4
	canBeInt32 := o.count%int32Bytes == 0 && !o.message.anySource
	o.message.isInt32 = canBeInt32 && g.IntN(2) == 0
	o.recv = g.buffer(o.count+gapBytes, m.isForeign)
}

const (
	tagCount = 3  // messages from a known source have the tags 0 to 2
	anyTag   = 7  // tag of all messages for AnySource; no other message has it
	gapBytes = 64 // unused bytes after a message, to detect writes beyond it
)

func drawBytes(d *rand.Rand, isLarge bool) int {
	const mebibyte = 1 << 20
	if isLarge {
		return mebibyte + d.IntN(7*mebibyte)
	}

	// 64 KiB occurs twice to make it more likely.
	limits := []int{0, 64, 4 << 10, 64 << 10, 64 << 10, 256 << 10, mebibyte}
	limit := limits[d.IntN(len(limits))]
	return d.IntN(1 + limit)
}

// drawForwarded sometimes returns an earlier message that o forwards: the last one that the sender
// of o has received from a known source. Otherwise, it returns nil.
func (g *generator) drawForwarded(o *op) *op {
	if o.message.anySource {
		return nil
	}

	shouldForward := g.IntN(3) == 0
	if !shouldForward {
		return nil
	}

	for i := range slices.Backward(g.p.ops) {
		earlier := &g.p.ops[i]
		hasKnownSource := earlier.kind == sendOp && !earlier.message.anySource
		if hasKnownSource && earlier.message.dst == o.message.src {
			return earlier
		}
	}

	return nil
}

func TestMessages(t *testing.T) {
	const defaultPrograms = 40
	messages.test(t, defaultPrograms, task{Kind: "messages"}, nil)
}

func TestMessagesOnAGPU(t *testing.T) {
	const defaultPrograms = 20
	messages.testOnAGPU(t, defaultPrograms, task{Kind: "messages"})
}
