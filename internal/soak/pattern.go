package soak

import (
	"math"

	"symmem"
)

// pattern says what every rank of a group sends in one call, and what it receives.
type pattern struct {
	operation symmem.Operation
	dataType  symmem.DataType
	reduceOp  symmem.ReduceOp
	// count is in elements, as the call has it; root is that of the call.
	count int64
	root  int
	ranks int
	// tag tells calls apart.
	tag uint64
}

// period is after how many elements values repeat: a prime, so that no distance of two buffers is
// a multiple of it.
const period = 1021

// most is the largest sum: what an int8 holds, and bfloat16 exactly.
const most = 120

// hash mixes what a value depends on (the finalizer of SplitMix64).
func hash(element, rank, tag uint64) uint64 {
	x := element*0x9e3779b97f4a7c15 + rank*0xbf58476d1ce4e5b9 + tag*0x94d049bb133111eb
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// sent is element i of what a rank sends.
func (p *pattern) sent(rank int, i int64) float64 {
	element := uint64(i % period)
	if p.reduces() && p.reduceOp == symmem.Prod {
		return p.factor(rank, element)
	}
	limit := uint64(most)
	if p.reduces() {
		limit = max(1, uint64(most/p.ranks))
	}
	return float64(1 + hash(element, uint64(rank), p.tag)%limit)
}

// factor is 2 on one rank, 3 on another and 1 on the rest, so that products stay small.
func (p *pattern) factor(rank int, element uint64) float64 {
	n := uint64(p.ranks)
	two := hash(element, 0, p.tag) % n
	switch uint64(rank) {
	case two:
		return 2
	case (two + 1 + hash(element, 1, p.tag)%max(1, n-1)) % n:
		return 3
	default:
		return 1
	}
}

func (p *pattern) reduces() bool {
	switch p.operation {
	case symmem.OpAllReduce, symmem.OpReduceScatter, symmem.OpReduce:
		return true
	default:
		return false
	}
}

// reduced is element i of all ranks' input combined.
func (p *pattern) reduced(i int64) float64 {
	result := p.sent(0, i)
	for rank := 1; rank < p.ranks; rank++ {
		v := p.sent(rank, i)
		switch p.reduceOp {
		case symmem.Prod:
			result *= v
		case symmem.Min:
			result = min(result, v)
		case symmem.Max:
			result = max(result, v)
		default:
			result += v
		}
	}
	if p.reduceOp != symmem.Avg {
		return result
	}
	if result /= float64(p.ranks); !floating(p.dataType) {
		return math.Trunc(result)
	}
	return result
}

// tolerance is the relative error that is no mistake: an average may be of rounded parts.
func (p *pattern) tolerance() float64 {
	powerOfTwo := p.ranks&(p.ranks-1) == 0
	if p.reduces() && p.reduceOp == symmem.Avg && floating(p.dataType) && !powerOfTwo {
		return 1.0 / 32
	}
	return 0
}

// spans returns how many elements are sent and received by every rank.
func (p *pattern) spans() (send, recv int64) {
	all := p.count * int64(p.ranks)
	switch p.operation {
	case symmem.OpAllGather:
		return p.count, all
	case symmem.OpReduceScatter:
		return all, p.count
	case symmem.OpAllToAll:
		return all, all
	default:
		return p.count, p.count
	}
}

// input is what a rank sends.
func (p *pattern) input(rank int) []byte {
	send, _ := p.spans()
	return p.tile(nil, 0, send, func(i int64) float64 { return p.sent(rank, i) })
}

// output is what a rank receives, or nil if the call leaves its memory alone.
func (p *pattern) output(rank int) []byte {
	part := int64(rank) * p.count
	switch p.operation {
	case symmem.OpReduce:
		if rank != p.root {
			return nil
		}
		return p.tile(nil, 0, p.count, p.reduced)
	case symmem.OpReduceScatter:
		return p.tile(nil, part, p.count, p.reduced)
	case symmem.OpBroadcast:
		return p.input(p.root)
	case symmem.OpAllGather:
		return p.gathered(0)
	case symmem.OpAllToAll:
		return p.gathered(part)
	case symmem.OpSend:
		return p.input((rank + p.ranks - 1) % p.ranks)
	default:
		return p.tile(nil, 0, p.count, p.reduced)
	}
}

// gathered is a part of every rank's input, one after the other.
func (p *pattern) gathered(from int64) (all []byte) {
	for rank := range p.ranks {
		all = p.tile(all, from, p.count, func(i int64) float64 { return p.sent(rank, i) })
	}
	return all
}

// tile appends n elements from an index on: one period, which is then repeated.
func (p *pattern) tile(to []byte, from, n int64, value func(i int64) float64) []byte {
	begin, bytes := len(to), int(n)*p.dataType.Size()
	for i := range min(n, period) {
		to = encode(to, p.dataType, value(from+i))
	}
	for len(to)-begin < bytes {
		done := to[begin:]
		to = append(to, done[:min(len(done), bytes-len(done))]...)
	}
	return to
}
