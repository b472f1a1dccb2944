package chaos

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"symmem"
)

// contents computes a part of a buffer on a rank: len(dst) bytes from an offset on. It is lazy,
// since a rank needs few of the bytes of other ranks.
type contents func(dst []byte, from int)

// initial returns the contents of a buffer before the first op: noise, in chunks that are drawn
// separately.
func initial(seed uint64, rank, buffer int) contents {
	const chunk = 4096
	return func(dst []byte, from int) {
		var key [32]byte
		binary.LittleEndian.PutUint64(key[:], seed)
		binary.LittleEndian.PutUint64(key[8:], uint64(rank)<<32|uint64(buffer))
		noise := make([]byte, chunk)
		for len(dst) > 0 {
			binary.LittleEndian.PutUint64(key[16:], uint64(from/chunk))
			// It never fails.
			_, _ = rand.NewChaCha8(key).Read(noise)
			n := copy(dst, noise[from%chunk:])
			dst, from = dst[n:], from+n
		}
	}
}

// with returns the contents after a write of n bytes at an offset.
func (c contents) with(at, n int, write func() []byte) contents {
	written := sync.OnceValue(write)
	return func(dst []byte, from int) {
		low, high := max(from, at), min(from+len(dst), at+n)
		if high-low < len(dst) {
			c(dst, from)
		}
		if low < high {
			copy(dst[low-from:high-from], written()[low-at:])
		}
	}
}

// part computes n bytes from an offset on.
func (c contents) part(from, n int) []byte {
	b := make([]byte, n)
	c(b, from)
	return b
}

// never is the index of an op that is not in the program.
const never = 1 << 30

// model predicts the outcome of a program and a mistake: the contents of all buffers, and the
// streams, events and groups that must report an error. Others may report one as well.
type model struct {
	seed uint64
	p    *program
	m    mistake
	// data has the buffers by rank. lost marks those whose contents are undefined.
	data [][]contents
	lost [][]bool
	// wrote is the last op that wrote each buffer, by rank; -1 before the first.
	wrote [][]int
	// failed is the first op of each stream that must fail, by rank.
	failed [][maxStreams]int
	// recorded is the op that recorded each event, and marred, by rank, whether it must carry an
	// error.
	recorded []int
	marred   [][]bool
	// broken is the first op that must fail in each group, by rank.
	broken [][]int
	ended  []bool // groups that have failed
	// unsure marks a program with a mistake and messages. A Send may succeed although its receiver
	// has failed, so nothing is predicted about messages then.
	unsure bool
	// tallies counts the tallies of each buffer.
	tallies []int32
	// sources are the senders of messages that rank received from AnySource, by op: ranks of the
	// group. taken counts these messages by group and world rank.
	rank    int
	sources map[int]int
	taken   map[[2]int]int
}

func newModel(seed uint64, p *program, m mistake) *model {
	v := &model{
		seed: seed, p: p, m: m, recorded: make([]int, p.events), ended: make([]bool, len(p.groups)),
		failed: make([][maxStreams]int, p.ranks), tallies: make([]int32, len(p.buffers)),
		taken: map[[2]int]int{},
	}
	for r := range p.ranks {
		data := make([]contents, len(p.buffers))
		for b := range data {
			data[b] = initial(seed, r, b)
		}
		v.data = append(v.data, data)
		v.lost = append(v.lost, make([]bool, len(p.buffers)))
		v.wrote = append(v.wrote, slices.Repeat([]int{-1}, len(p.buffers)))
		v.failed[r] = [maxStreams]int(slices.Repeat([]int{never}, maxStreams))
		v.marred = append(v.marred, make([]bool, p.events))
		v.broken = append(v.broken, slices.Repeat([]int{never}, len(p.groups)))
	}
	return v
}

// run performs all ops before an index.
func (v *model) run(before int) {
	for i := range v.p.ops[:before] {
		o := &v.p.ops[i]
		switch o.kind {
		case record:
			v.recorded[o.event] = i
			for r := range v.p.ranks {
				v.marred[r][o.event] = v.failed[r][o.stream] < never
			}
		case wait:
			for r := range v.p.ranks {
				if v.marred[r][o.event] {
					v.fail(r, o.stream, i)
				}
			}
		case take:
			for r := range v.p.ranks {
				v.wrote[r][o.recv], v.lost[r][o.recv] = i, v.failed[r][o.stream] < never
			}
		case drop, captureGraph, await, closeLate:
		default:
			for n, work := range v.p.body(o) {
				if o.kind == launchGraph {
					work.stream, work.on = o.stream, o.stream
				}
				v.work(i, n, &work)
			}
		}
	}
}

func (v *model) fail(rank, stream, at int) {
	v.failed[rank][stream] = min(v.failed[rank][stream], at)
}

// makes reports whether a rank performs an op.
func (v *model) makes(rank, at int) bool {
	if rank != v.m.rank {
		return true
	}
	switch v.m.kind {
	case killed:
		return at < v.m.at
	case aborts, cancels, skips:
		return at != v.m.at
	default:
		return true
	}
}

// work performs a call or a copy; n is its index in a graph.
func (v *model) work(at, n int, o *op) {
	if o.kind == cp {
		for r := range v.p.ranks {
			if v.makes(r, at) {
				v.copy(r, at, o)
			}
		}
		return
	}
	if o.kind == send && v.m.kind != none {
		to := o.message.to
		v.wrote[to][o.recv], v.lost[to][o.recv], v.unsure = at, true, true
		return
	}
	members := v.p.parties(o)
	differs := (v.m.kind == otherCount || v.m.kind == otherType) && at == v.m.at && n == v.m.body
	fails := v.ended[o.group] || differs
	for _, r := range members {
		fails = fails || !v.makes(r, at) || v.failed[r][o.streamOf(r)] < never
	}
	if !fails {
		v.call(at, o)
		return
	}
	v.ended[o.group] = true
	for _, r := range members {
		if v.makes(r, at) {
			v.fail(r, o.streamOf(r), at)
			v.broken[r][o.group] = min(v.broken[r][o.group], at)
			v.lost[r][o.recv] = true
			v.wrote[r][o.recv] = at
		}
	}
}

func (v *model) copy(rank, at int, o *op) {
	if v.failed[rank][o.stream] < never {
		v.wrote[rank][o.recv], v.lost[rank][o.recv] = at, true
		return
	}
	from, n := v.read(rank, o.send), 4*o.count
	v.write(rank, at, o.recv, 0, n, func() []byte { return from.part(0, n) })
	v.lost[rank][o.recv] = v.lost[rank][o.recv] || v.lost[rank][o.send]
}

// read returns the contents of a buffer for an op that may succeed. They are undefined only after a
// message of a program with a mistake; otherwise the model is wrong.
func (v *model) read(rank, buffer int) contents {
	if v.lost[rank][buffer] && !v.unsure {
		panic("the model is wrong: an op that may succeed reads a buffer that is undefined")
	}
	return v.data[rank][buffer]
}

// call performs a call on all its ranks.
func (v *model) call(at int, o *op) {
	members := v.p.parties(o)
	inputs, lost := make([]contents, len(members)), false
	for i, r := range members {
		if o.kind != send || i == 0 {
			inputs[i] = v.read(r, o.send)
			lost = lost || v.lost[r][o.send]
		}
	}
	defer func() {
		for _, r := range members {
			v.lost[r][o.recv] = v.lost[r][o.recv] || lost
		}
	}()
	switch o.kind {
	case send:
		v.deliver(at, o, inputs[0])
	case tally:
		v.tallies[o.recv]++
		for r := range members {
			v.wrote[r][o.recv] = at
			v.data[r][o.recv] = v.tallied(r, o.recv)
		}
	case allToAllV:
		x := o.parts
		for r := range members {
			for from, place := range x.ins[r] {
				n, out := x.counts[from][r]*x.bytes(), x.outs[from][r]*x.bytes()
				v.write(r, at, o.recv, int(place*x.bytes()), int(n), func() []byte {
					return inputs[from].part(int(out), int(n))
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
			v.write(r, at, o.recv, 0, n, func() []byte { return result(o, i, inputs) })
		}
	}
}

// tallied returns the contents of a buffer after its tallies so far.
func (v *model) tallied(rank, buffer int) contents {
	n, times := v.p.buffers[buffer].bytes/v.p.ranks, v.tallies[buffer]
	own := initial(v.seed, rank, buffer)
	return own.with(rank*n, n, func() []byte {
		order, sum := binary.NativeEndian, own.part(rank*n, n)
		for other := range v.p.ranks {
			if other == rank {
				continue
			}
			theirs := initial(v.seed, other, buffer).part(rank*n, n)
			for i := 0; i < n; i += 4 {
				order.PutUint32(sum[i:], order.Uint32(sum[i:])+uint32(times)*order.Uint32(theirs[i:]))
			}
		}
		return sum
	})
}

// write records a write of an op. A buffer that was undefined stays so unless all of it is written.
func (v *model) write(rank, op, buffer, at, n int, result func() []byte) {
	v.wrote[rank][buffer] = op
	if n == v.p.buffers[buffer].bytes {
		v.lost[rank][buffer] = false
	}
	v.data[rank][buffer] = v.data[rank][buffer].with(at, n, result)
}

// deliver writes a message into its receiver's buffer. From AnySource it is the next message of the
// rank that was reported as its source.
func (v *model) deliver(at int, o *op, from contents) {
	to := o.message.to
	if source, known := v.sources[at]; known || o.message.any && to == v.rank {
		from = func(dst []byte, _ int) { clear(dst) } // no rank has sent it
		if known && source >= 0 && source < len(v.p.groups[o.group]) {
			from = v.nextOf(o, v.p.groups[o.group][source], from)
		}
	}
	v.write(to, at, o.recv, 0, o.count, func() []byte { return from.part(0, o.count) })
}

// nextOf returns the contents of the first message of a rank to the receiver of another one, from
// AnySource too, that was not taken.
func (v *model) nextOf(o *op, from int, none contents) contents {
	left := v.taken[[2]int{o.group, from}]
	v.taken[[2]int{o.group, from}]++
	for i := range v.p.ops {
		s := &v.p.ops[i]
		candidate := s.kind == send && s.message.any && s.group == o.group &&
			s.message.from == from && s.message.to == o.message.to
		if candidate && left == 0 {
			return v.data[from][s.send]
		}
		if candidate {
			left--
		}
	}
	return none
}

// result returns what a rank of a group receives from a dense collective.
func result(o *op, rank int, inputs []contents) (all []byte) {
	n := 4 * o.count
	switch o.kind {
	case allReduce, reduce:
		return reduced(o, inputs, 0)
	case reduceScatter:
		return reduced(o, inputs, rank*n)
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

// reduced combines the elements of all ranks from an offset on.
func reduced(o *op, inputs []contents, from int) []byte {
	order := binary.NativeEndian
	result := inputs[0].part(from, 4*o.count)
	for _, in := range inputs[1:] {
		theirs := in.part(from, 4*o.count)
		for i := 0; i < len(result); i += 4 {
			a, b := int32(order.Uint32(result[i:])), int32(order.Uint32(theirs[i:]))
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
