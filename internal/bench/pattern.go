package bench

import "symmem"

// pattern says what every rank sends and what it must receive. Values are small whole numbers, so
// that every type holds them and their sums exactly and any difference is a wrong result. They
// depend on the element by a hash, so that a shifted result is wrong, too.
type pattern struct {
	operation *Operation
	reduceOp  symmem.ReduceOp
	count     int64
	ranks     int64
}

// drawn is a number from 0 to 7 for an element.
func drawn(i int64) int64 { return int64(uint32(i) * 2654435761 >> 29) }

// weight sets ranks apart, by as little as a byte can hold.
func weight(rank int64) int64 { return 2 * (rank % weights) }

const weights = 32

// weightOf is the sum of the weights of n ranks.
func weightOf(n int64) int64 {
	full, rest := n/weights, n%weights
	return full*weights*(weights-1) + rest*(rest-1)
}

// sent is element i of what a rank sends. Averages are of equal numbers, as sums need not divide.
func (p *pattern) sent(rank, i int64) int64 {
	switch {
	case !p.operation.reduces:
		return drawn(i) + weight(rank)
	case p.reduceOp == symmem.Prod:
		return 1 + (drawn(i)+rank)&1
	case p.reduceOp == symmem.Avg:
		return drawn(i) & 3
	default:
		return drawn(i) + weight(rank)
	}
}

// reduced is element i of all ranks' input combined.
func (p *pattern) reduced(i int64) int64 {
	n, d := p.ranks, drawn(i)
	switch p.reduceOp {
	case symmem.Sum:
		return n*d + weightOf(n)
	case symmem.Prod:
		return 1 << ((n + d&1) / 2)
	case symmem.Min:
		return d
	case symmem.Max:
		return d + weight(min(n, weights)-1)
	default:
		return d & 3
	}
}

// wanted is element i of what a rank must receive; false where the operation leaves it alone.
func (p *pattern) wanted(rank, i int64) (int64, bool) {
	switch p.operation.kind {
	case symmem.OpAllReduce:
		return p.reduced(i), true
	case symmem.OpReduceScatter:
		return p.reduced(rank*p.count + i), true
	case symmem.OpReduce:
		return p.reduced(i), rank == 0
	case symmem.OpAllGather:
		return p.sent(i/p.count, i%p.count), true
	case symmem.OpBroadcast:
		return p.sent(0, i), true
	case symmem.OpAllToAll:
		return p.sent(i/p.count, rank*p.count+i%p.count), true
	case symmem.OpSend:
		_, previous := ring(int(rank), int(p.ranks))
		return p.sent(int64(previous), i), true
	default:
		return 0, false
	}
}
