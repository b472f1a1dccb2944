package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"symmem"
)

// mistake is what one rank does differently from the others.
type mistake struct {
	kind mistakeKind
	rank int
	// at is the op at which it is made; body is the place of the call in the graph that the op
	// launches, else 0.
	at, body int
}

type mistakeKind int

const (
	// none is a program without a mistake, all of whose results must come.
	none mistakeKind = iota
	// killed ends the process instead of the call.
	killed
	// killedSoon ends it at some time after that.
	killedSoon
	// aborts aborts the group instead of the call.
	aborts
	// otherCount and otherType make the call with another count or type.
	otherCount
	otherType
	// skips leaves it out.
	skips
	mistakeKinds
)

var mistakeNames = [...]string{
	"none", "killed", "killed soon", "aborts", "other count", "other type", "skips",
}

func (m mistake) String() string {
	if m.kind == none {
		return "no mistake"
	}
	return fmt.Sprintf("%s on rank %d at op %d.%d", mistakeNames[m.kind], m.rank, m.at, m.body)
}

// drawMistake draws a mistake in some call of the program. It is found out in any case: a rank that
// skips a call comes to none that looks like it.
func drawMistake(d *rand.Rand, p *program) mistake {
	for range 100 {
		m := mistake{kind: mistakeKind(d.IntN(int(mistakeKinds))), rank: d.IntN(p.ranks)}
		if m.kind == none {
			return m
		}
		m.at = d.IntN(len(p.ops))
		body := p.body(&p.ops[m.at])
		m.body = d.IntN(len(body))
		o := &body[m.body]
		if !o.kind.collective() || !p.member(m.rank, o) {
			continue
		}
		switch m.kind {
		case otherCount:
			if o.count == 1 {
				continue
			}
		case skips:
			if p.looksAlike(&m) {
				continue
			}
		default:
		}
		if m.kind == otherCount || m.kind == otherType {
			m.at = p.firstLaunch(m.at)
		}
		return m
	}
	return mistake{}
}

// firstLaunch is the first op that launches the same graph as this one, if it launches any: a graph
// is captured once.
func (p *program) firstLaunch(at int) int {
	if o := &p.ops[at]; o.kind == launchGraph {
		for i := range p.ops {
			if p.ops[i].kind == launchGraph && p.ops[i].graph == o.graph {
				return i
			}
		}
	}
	return at
}

// looksAlike reports whether a rank that skips an op comes to a call instead that looks, in its
// group, like the one that it has skipped.
func (p *program) looksAlike(m *mistake) bool {
	for g := range p.groups {
		if !slices.Contains(p.groups[g], m.rank) {
			continue
		}
		all, own := p.calls(g, m.at, len(p.ops)), p.calls(g, m.at+1, len(p.ops))
		if len(all) > len(own) && len(own) > 0 && all[0].kind == own[0].kind &&
			all[0].count == own[0].count {
			return true
		}
	}
	return false
}

// calls are those of a group from one op to another.
func (p *program) calls(group, from, to int) (calls []op) {
	for i := from; i < to; i++ {
		for _, o := range p.body(&p.ops[i]) {
			if o.kind.collective() && o.group == group {
				calls = append(calls, o)
			}
		}
	}
	return calls
}

// never is the place of an op that is not in the program.
const never = 1 << 30

// model is what must come of a program and a mistake: the contents of all buffers, and what must
// report an error, since it could not be right. What may report one is not said.
type model struct {
	p *program
	m mistake
	// data are the buffers by rank, and lost tells of each whether its contents are undefined.
	data [][][]int32
	lost [][]bool
	// wrote is the op that wrote a buffer last, by rank, and -1 before the first.
	wrote [][]int
	// failed is the first op of a stream that must fail, by rank; never if there is none.
	failed [][streams]int
	// recorded is the op that recorded an event, and marred reports whether it must carry an error, by
	// rank.
	recorded []int
	marred   [][]bool
	// broken is the first op that must fail in a group, by rank.
	broken [][]int
	ended  []bool // groups that have failed
}

func newModel(seed uint64, p *program, m mistake) *model {
	v := &model{
		p: p, m: m, recorded: make([]int, p.events), ended: make([]bool, len(p.groups)),
		failed: make([][streams]int, p.ranks),
	}
	for r := range p.ranks {
		data := make([][]int32, p.buffers)
		for b := range data {
			data[b] = initial(seed, r, b, p.elements)
		}
		v.data = append(v.data, data)
		v.lost = append(v.lost, make([]bool, p.buffers))
		v.wrote = append(v.wrote, slices.Repeat([]int{-1}, p.buffers))
		v.failed[r] = [streams]int(slices.Repeat([]int{never}, streams))
		v.marred = append(v.marred, make([]bool, p.events))
		v.broken = append(v.broken, slices.Repeat([]int{never}, len(p.groups)))
	}
	return v
}

// initial is what a buffer holds at first.
func initial(seed uint64, rank, buffer, elements int) []int32 {
	d := rand.New(rand.NewPCG(seed, uint64(rank)<<32|uint64(buffer)))
	data := make([]int32, elements)
	for i := range data {
		data[i] = int32(d.Uint32())
	}
	return data
}

// run takes all ops before a place.
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
		default:
			for n, work := range v.p.body(o) {
				v.work(i, n, o.stream, &work)
			}
		}
	}
}

func (v *model) fail(rank, stream, at int) {
	v.failed[rank][stream] = min(v.failed[rank][stream], at)
}

// makes reports whether a rank does an op.
func (v *model) makes(rank, at int) bool {
	if rank != v.m.rank {
		return true
	}
	switch v.m.kind {
	case killed:
		return at < v.m.at
	case aborts, skips:
		return at != v.m.at
	default:
		return true
	}
}

// work takes a collective or a copy, which is a part of an op.
func (v *model) work(at, n, stream int, o *op) {
	if o.kind == cp {
		for r := range v.p.ranks {
			if v.makes(r, at) {
				v.copy(r, at, stream, o)
			}
		}
		return
	}
	members := v.p.groups[o.group]
	differs := (v.m.kind == otherCount || v.m.kind == otherType) && at == v.m.at && n == v.m.body
	fails := v.ended[o.group] || differs
	for _, r := range members {
		fails = fails || !v.makes(r, at) || v.failed[r][stream] < never
	}
	if !fails {
		v.collect(at, o)
		return
	}
	v.ended[o.group] = true
	for _, r := range members {
		if v.makes(r, at) {
			v.fail(r, stream, at)
			v.broken[r][o.group] = min(v.broken[r][o.group], at)
			v.lost[r][o.recv] = true
			v.wrote[r][o.recv] = at
		}
	}
}

func (v *model) copy(rank, at, stream int, o *op) {
	v.wrote[rank][o.recv] = at
	v.lost[rank][o.recv] = v.failed[rank][stream] < never
	if !v.lost[rank][o.recv] {
		v.read(rank, o.send)
		copy(v.data[rank][o.recv], v.data[rank][o.send])
	}
}

// read checks the model itself: what is undefined is read by nothing that may go well.
func (v *model) read(rank, buffer int) []int32 {
	if v.lost[rank][buffer] {
		panic("the model is wrong: an op that may go well reads a buffer that is undefined")
	}
	return v.data[rank][buffer]
}

// collect does a collective on all ranks of its group.
func (v *model) collect(at int, o *op) {
	members := v.p.groups[o.group]
	inputs := make([][]int32, len(members))
	for i, r := range members {
		inputs[i] = slices.Clone(v.read(r, o.send))
	}
	for i, r := range members {
		if o.kind == reduce && i != o.root {
			continue
		}
		v.wrote[r][o.recv] = at
		// What the call does not write stays undefined if it was.
		result := results(o, i, inputs)
		if v.lost[r][o.recv] && len(result) == v.p.elements {
			v.lost[r][o.recv] = false
		}
		copy(v.data[r][o.recv], result)
	}
}

// results are what a rank of a group receives.
func results(o *op, rank int, inputs [][]int32) []int32 {
	n := o.count
	var all []int32
	switch o.kind {
	case allReduce, reduce:
		return reduced(o, inputs, 0)
	case reduceScatter:
		return reduced(o, inputs, rank*n)
	case broadcast:
		return inputs[o.root][:n]
	case allGather:
		for _, in := range inputs {
			all = append(all, in[:n]...)
		}
	case allToAll:
		for _, in := range inputs {
			all = append(all, in[rank*n:(rank+1)*n]...)
		}
	default:
		panic("no collective")
	}
	return all
}

// reduced combines the elements of all ranks from a place on.
func reduced(o *op, inputs [][]int32, from int) []int32 {
	result := slices.Clone(inputs[0][from : from+o.count])
	for _, in := range inputs[1:] {
		for i := range result {
			switch x := in[from+i]; o.reduce {
			case symmem.Min:
				result[i] = min(result[i], x)
			case symmem.Max:
				result[i] = max(result[i], x)
			default:
				result[i] += x
			}
		}
	}
	return result
}
