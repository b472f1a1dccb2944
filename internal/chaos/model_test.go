package chaos

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"symmem"
)

// contents represents the contents of a buffer as a function that writes len(dst) bytes,
// beginning at offset, to dst. The bytes are computed on demand, because a rank needs only a few
// bytes of the other ranks' buffers.
type contents func(dst []byte, offset int)

// initialContents returns the random contents that a buffer has before the first op. It draws
// each chunk independently, so that any part can be computed without the rest.
func initialContents(seed uint64, rank, buffer int) contents {
	const chunk = 4096
	return func(dst []byte, offset int) {
		var key [32]byte
		binary.LittleEndian.PutUint64(key[:], seed)
		binary.LittleEndian.PutUint64(key[8:], uint64(rank)<<32|uint64(buffer))
		noise := make([]byte, chunk)
		for len(dst) > 0 {
			binary.LittleEndian.PutUint64(key[16:], uint64(offset/chunk))
			_, _ = rand.NewChaCha8(key).Read(noise) // never fails
			n := copy(dst, noise[offset%chunk:])
			dst, offset = dst[n:], offset+n
		}
	}
}

func (c contents) withWrite(offset, n int, write func() []byte) contents {
	written := sync.OnceValue(write)
	return func(dst []byte, start int) {
		low, high := max(start, offset), min(start+len(dst), offset+n)
		if high-low < len(dst) {
			c(dst, start)
		}

		if low < high {
			copy(dst[low-start:high-start], written()[low-offset:])
		}
	}
}

func (c contents) part(offset, n int) []byte {
	b := make([]byte, n)
	c(b, offset)
	return b
}

// never is used as the index of an op that does not exist. It exceeds the indexes of all ops.
const never = 1 << 30

// model predicts the outcome of a program, possibly with a mistake: the contents of all buffers,
// and which streams, events and groups must report an error. After a mistake, other streams, events
// and groups may also report errors.
type model struct {
	seed uint64
	p    *program
	m    mistake
	// data holds the contents of all buffers, by rank and buffer. undefined is set for buffers
	// whose contents are undefined.
	data      [][]contents
	undefined [][]bool
	// lastWrite is the op that last wrote to each buffer, by rank and buffer, or -1.
	lastWrite [][]int
	// streamFailsAt is the first op that must fail on each stream, by rank and stream, or never.
	streamFailsAt [][maxStreams]int
	// recordOp is the op that recorded each event. eventFails is set for events that must report an
	// error, by rank and event.
	recordOp   []int
	eventFails [][]bool
	// groupFailsAt is the first op that must fail in each group, by rank and group, or never.
	groupFailsAt [][]int
	groupFailed  []bool
	// messagesUncertain is set if the program has both a mistake and messages. The model then does
	// not predict the results of messages, because a Send may succeed even if its receiver has
	// failed.
	messagesUncertain bool
	tallies           []int32
	// rank is the rank whose results are checked. sources holds, for each Recv from AnySource, the
	// group rank whose message arrived, by op. received counts these messages by group and by the
	// sender's world rank.
	rank     int
	sources  map[int]int
	received map[[2]int]int
}

func newModel(seed uint64, p *program, m mistake) *model {
	v := &model{
		seed: seed, p: p, m: m,
		recordOp: make([]int, p.events), groupFailed: make([]bool, len(p.groups)),
		streamFailsAt: make([][maxStreams]int, p.ranks), tallies: make([]int32, len(p.buffers)),
		received: map[[2]int]int{},
	}
	for r := range p.ranks {
		data := make([]contents, len(p.buffers))
		for b := range data {
			data[b] = initialContents(seed, r, b)
		}

		v.data = append(v.data, data)
		v.undefined = append(v.undefined, make([]bool, len(p.buffers)))
		v.lastWrite = append(v.lastWrite, slices.Repeat([]int{-1}, len(p.buffers)))
		v.streamFailsAt[r] = [maxStreams]int(slices.Repeat([]int{never}, maxStreams))
		v.eventFails = append(v.eventFails, make([]bool, p.events))
		v.groupFailsAt = append(v.groupFailsAt, slices.Repeat([]int{never}, len(p.groups)))
	}

	return v
}

func (m *model) run(end int) {
	for i := range m.p.ops[:end] {
		o := &m.p.ops[i]
		switch o.kind {
		case recordOp:
			m.recordOp[o.event] = i
			for r := range m.p.ranks {
				m.eventFails[r][o.event] = m.streamFailsAt[r][o.stream] < never
			}
		case waitOp:
			for r := range m.p.ranks {
				if m.eventFails[r][o.event] {
					m.fail(r, o.stream, i)
				}
			}
		case allocOp:
			for r := range m.p.ranks {
				m.lastWrite[r][o.recv], m.undefined[r][o.recv] = i, m.streamFailsAt[r][o.stream] < never
			}
		case freeOp, captureOp, syncOp, closeGraphsOp:
		default:
			for n, work := range m.p.body(o) {
				if o.kind == launchOp {
					work.stream, work.recvStream = o.stream, o.stream
				}

				m.work(i, n, &work)
			}
		}
	}
}

func (m *model) fail(rank, stream, index int) {
	m.streamFailsAt[rank][stream] = min(m.streamFailsAt[rank][stream], index)
}

func (m *model) performs(rank, index int) bool {
	if rank != m.m.rank {
		return true
	}

	switch m.m.kind {
	case killNow:
		return index < m.m.opIndex
	case abortNow, cancelRegistration, skipCall:
		return index != m.m.opIndex
	default:
		return true
	}
}

// work performs a call or a copy. index is the index of the op. If that op launches a graph, n is
// the index of the call or copy in the graph; otherwise, n is 0.
func (m *model) work(index, n int, o *op) {
	if o.kind == copyOp {
		for r := range m.p.ranks {
			if m.performs(r, index) {
				m.copy(r, index, o)
			}
		}

		return
	}

	if o.kind == sendOp && m.m.kind != noMistake {
		to := o.message.dst
		m.lastWrite[to][o.recv], m.undefined[to][o.recv], m.messagesUncertain = index, true, true
		return
	}

	members := m.p.participants(o)
	differs := (m.m.kind == wrongCount || m.m.kind == wrongType) &&
		index == m.m.opIndex && n == m.m.bodyIndex
	fails := m.groupFailed[o.group] || differs
	for _, r := range members {
		fails = fails || !m.performs(r, index) || m.streamFailsAt[r][o.streamOf(r)] < never
	}

	if !fails {
		m.call(index, o)
		return
	}

	m.groupFailed[o.group] = true
	for _, r := range members {
		if m.performs(r, index) {
			m.fail(r, o.streamOf(r), index)
			m.groupFailsAt[r][o.group] = min(m.groupFailsAt[r][o.group], index)
			m.undefined[r][o.recv] = true
			m.lastWrite[r][o.recv] = index
		}
	}
}

func (m *model) copy(rank, index int, o *op) {
	if m.streamFailsAt[rank][o.stream] < never {
		m.lastWrite[rank][o.recv], m.undefined[rank][o.recv] = index, true
		return
	}

	src, n := m.read(rank, o.send), 4*o.count
	m.write(rank, index, o.recv, 0, n, func() []byte { return src.part(0, n) })
	m.undefined[rank][o.recv] = m.undefined[rank][o.recv] || m.undefined[rank][o.send]
}

// read returns the contents of a buffer for an op that may succeed. It panics if they are
// undefined, unless messages are uncertain.
func (m *model) read(rank, buffer int) contents {
	if m.undefined[rank][buffer] && !m.messagesUncertain {
		panic("bug in the model: an op that may succeed reads a buffer with undefined contents")
	}

	return m.data[rank][buffer]
}

// call performs a call that succeeds, on all ranks that take part in it.
func (m *model) call(index int, o *op) {
	members := m.p.participants(o)
	inputs, undefined := make([]contents, len(members)), false
	for i, r := range members {
		if o.kind != sendOp || i == 0 {
			inputs[i] = m.read(r, o.send)
			undefined = undefined || m.undefined[r][o.send]
		}
	}

	defer func() {
		for _, r := range members {
			m.undefined[r][o.recv] = m.undefined[r][o.recv] || undefined
		}
	}()
	switch o.kind {
	case sendOp:
		m.deliver(index, o, inputs[0])
	case tallyOp:
		m.tallies[o.recv]++
		for r := range members {
			m.lastWrite[r][o.recv] = index
			m.data[r][o.recv] = m.tallyContents(r, o.recv)
		}
	case allToAllV:
		x := o.parts
		for r := range members {
			for src, offset := range x.recvOffsets[r] {
				n, out := x.counts[src][r]*x.bytes(), x.sendOffsets[src][r]*x.bytes()
				m.write(r, index, o.recv, int(offset*x.bytes()), int(n), func() []byte {
					return inputs[src].part(int(out), int(n))
				})
			}
		}
	default:
		for i, r := range members {
			if o.kind == reduce && i != o.root {
				continue
			}

			n := 4 * o.count
			if o.kind == allGather || o.kind == allToAll {
				n *= len(members)
			}

			m.write(r, index, o.recv, 0, n, func() []byte { return result(o, i, inputs) })
		}
	}
}

func (m *model) tallyContents(rank, buffer int) contents {
	n, times := m.p.buffers[buffer].bytes/m.p.ranks, m.tallies[buffer]
	own := initialContents(m.seed, rank, buffer)
	return own.withWrite(rank*n, n, func() []byte {
		order, sum := binary.NativeEndian, own.part(rank*n, n)
		for other := range m.p.ranks {
			if other == rank {
				continue
			}

			addend := initialContents(m.seed, other, buffer).part(rank*n, n)
			for i := 0; i < n; i += 4 {
				order.PutUint32(sum[i:], order.Uint32(sum[i:])+uint32(times)*order.Uint32(addend[i:]))
			}
		}

		return sum
	})
}

// write records that an op writes n bytes at index to a buffer. Undefined contents become
// defined only if the op writes the whole buffer.
func (m *model) write(rank, op, buffer, index, n int, result func() []byte) {
	m.lastWrite[rank][buffer] = op
	if n == m.p.buffers[buffer].bytes {
		m.undefined[rank][buffer] = false
	}

	m.data[rank][buffer] = m.data[rank][buffer].withWrite(index, n, result)
}

// deliver writes a message to the receiver's buffer. A Recv from AnySource gets the next message
// from the source that it reported, which need not be the sender in the program.
func (m *model) deliver(index int, o *op, sent contents) {
	to := o.message.dst
	if source, reported := m.sources[index]; reported || o.message.anySource && to == m.rank {
		sent = func(dst []byte, _ int) { clear(dst) } // if there is no such message
		if reported && source >= 0 && source < len(m.p.groups[o.group]) {
			sent = m.nextMessage(o, m.p.groups[o.group][source], sent)
		}
	}

	m.write(to, index, o.recv, 0, o.count, func() []byte { return sent.part(0, o.count) })
}

// nextMessage returns the contents of the next message that rank src sent to o's receiver for
// AnySource. If src sent no further message, nextMessage returns its argument none.
func (m *model) nextMessage(o *op, src int, none contents) contents {
	skip := m.received[[2]int{o.group, src}]
	m.received[[2]int{o.group, src}]++
	for i := range m.p.ops {
		s := &m.p.ops[i]
		candidate := s.kind == sendOp && s.message.anySource && s.group == o.group &&
			s.message.src == src && s.message.dst == o.message.dst
		if candidate && skip == 0 {
			return m.data[src][s.send]
		}

		if candidate {
			skip--
		}
	}

	return none
}

// result returns the bytes that a rank of the group receives from a collective whose parts all
// have the same length.
func result(o *op, rank int, inputs []contents) (all []byte) {
	n := 4 * o.count
	switch o.kind {
	case allReduce, reduce:
		return reduceInputs(o, inputs, 0)
	case reduceScatter:
		return reduceInputs(o, inputs, rank*n)
	case broadcast:
		return inputs[o.root].part(0, n)
	case allGather:
		for _, in := range inputs {
			all = append(all, in.part(0, n)...)
		}
	case allToAll:
		for _, in := range inputs {
			all = append(all, in.part(rank*n, n)...)
		}
	default:
		panic(fmt.Sprintf("%v has no result here", o))
	}

	return all
}

// reduceInputs combines o.count elements of each input, beginning at an offset in bytes.
func reduceInputs(o *op, inputs []contents, offset int) []byte {
	order := binary.NativeEndian
	result := inputs[0].part(offset, 4*o.count)
	for _, in := range inputs[1:] {
		other := in.part(offset, 4*o.count)
		for i := 0; i < len(result); i += 4 {
			a, b := int32(order.Uint32(result[i:])), int32(order.Uint32(other[i:]))
			switch o.reduce {
			case symmem.Min:
				a = min(a, b)
			case symmem.Max:
				a = max(a, b)
			default:
				a += b
			}

			order.PutUint32(result[i:], uint32(a))
		}
	}

	return result
}
