package workload

import (
	"math"

	"symmem"
)

// Pattern says what every rank of a group sends in one call, and what it must receive: small
// numbers that every type holds, so that sums are exact, by a hash of the element, the rank and the
// call, so that memory of another rank, place or call shows.
type Pattern struct {
	Operation symmem.Operation
	DataType  symmem.DataType
	ReduceOp  symmem.ReduceOp
	// Count is in elements, as the call has it; Root is that of the call.
	Count int64
	Root  int
	Ranks int
	// Tag tells calls apart.
	Tag uint64
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
func (p *Pattern) sent(rank int, i int64) float64 {
	element := uint64(i % period)
	if p.Reduces() && p.ReduceOp == symmem.Prod {
		return p.factor(rank, element)
	}
	limit := uint64(most)
	if p.Reduces() {
		// With more than 60 ranks a sum may be more than an int8 holds; it is the same modulo 256.
		limit = max(2, uint64(most/p.Ranks))
	}
	return float64(1 + hash(element, uint64(rank), p.Tag)%limit)
}

// factor is 2 on one rank, 3 on another and 1 on the rest, so that products stay small.
func (p *Pattern) factor(rank int, element uint64) float64 {
	n := uint64(p.Ranks)
	two := hash(element, 0, p.Tag) % n
	switch uint64(rank) {
	case two:
		return 2
	case (two + 1 + hash(element, 1, p.Tag)%max(1, n-1)) % n:
		return 3
	default:
		return 1
	}
}

// Reduces reports whether the operation combines what ranks send.
func (p *Pattern) Reduces() bool {
	switch p.Operation {
	case symmem.OpAllReduce, symmem.OpReduceScatter, symmem.OpReduce:
		return true
	default:
		return false
	}
}

// reduced is element i of all ranks' input combined.
func (p *Pattern) reduced(i int64) float64 {
	result := p.sent(0, i)
	for rank := 1; rank < p.Ranks; rank++ {
		v := p.sent(rank, i)
		switch p.ReduceOp {
		case symmem.Prod:
			result *= v
		case symmem.Min:
			result = min(result, v)
		case symmem.Max:
			result = max(result, v)
		case symmem.Sum, symmem.Avg:
			result += v
		default:
			panic("no pattern for " + p.ReduceOp.String())
		}
	}
	if p.ReduceOp != symmem.Avg {
		return result
	}
	if result /= float64(p.Ranks); !floating(p.DataType) {
		return math.Trunc(result)
	}
	return result
}

// Tolerance is the relative error that is no mistake: an average may be of rounded parts.
func (p *Pattern) Tolerance() float64 {
	powerOfTwo := p.Ranks&(p.Ranks-1) == 0
	if p.Reduces() && p.ReduceOp == symmem.Avg && floating(p.DataType) && !powerOfTwo {
		return 1.0 / 32
	}
	return 0
}

// Spans returns how many elements are sent and received by every rank.
func (p *Pattern) Spans() (send, recv int64) {
	all := p.Count * int64(p.Ranks)
	switch p.Operation {
	case symmem.OpAllGather:
		return p.Count, all
	case symmem.OpReduceScatter:
		return all, p.Count
	case symmem.OpAllToAll:
		return all, all
	default:
		return p.Count, p.Count
	}
}

// Input is what a rank sends.
func (p *Pattern) Input(rank int) []byte {
	send, _ := p.Spans()
	return p.tile(nil, 0, send, func(i int64) float64 { return p.sent(rank, i) })
}

// Output is what a rank receives, or nil if the call leaves its memory alone.
func (p *Pattern) Output(rank int) []byte {
	part := int64(rank) * p.Count
	switch p.Operation {
	case symmem.OpReduce:
		if rank != p.Root {
			return nil
		}
		return p.tile(nil, 0, p.Count, p.reduced)
	case symmem.OpReduceScatter:
		return p.tile(nil, part, p.Count, p.reduced)
	case symmem.OpBroadcast:
		return p.Input(p.Root)
	case symmem.OpAllGather:
		return p.gathered(0)
	case symmem.OpAllToAll:
		return p.gathered(part)
	case symmem.OpSend:
		return p.Input((rank + p.Ranks - 1) % p.Ranks)
	default:
		return p.tile(nil, 0, p.Count, p.reduced)
	}
}

// gathered is a part of every rank's input, one after the other.
func (p *Pattern) gathered(from int64) (all []byte) {
	for rank := range p.Ranks {
		all = p.tile(all, from, p.Count, func(i int64) float64 { return p.sent(rank, i) })
	}
	return all
}

// tile appends n elements from an index on: one period, which is then repeated.
func (p *Pattern) tile(to []byte, from, n int64, value func(i int64) float64) []byte {
	begin, bytes := len(to), int(n)*p.DataType.Size()
	for i := range min(n, period) {
		to = Encode(to, p.DataType, value(from+i))
	}
	for len(to)-begin < bytes {
		done := to[begin:]
		to = append(to, done[:min(len(done), bytes-len(done))]...)
	}
	return to
}
