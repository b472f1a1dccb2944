package workload

import (
	"math"
	"slices"

	"symmem"
	"symmem/driver"
	"symmem/driver/formula"
	"symmem/internal/reduce"
)

// Pattern defines the data of one call. The values are small integers, whose sums are exact in
// every type. They differ between ranks, offsets and calls.
type Pattern struct {
	Operation symmem.Operation
	DataType  symmem.DataType
	ReduceOp  symmem.ReduceOp // ignored unless the operation reduces
	// Count is the count argument of the call. If the parts have different sizes, Count is the
	// number of elements of the largest possible part.
	Count int64
	Root  int    // rank in the group; ignored unless the operation has a root
	Ranks int    // number of ranks in the group
	Tag   uint64 // differs between calls, so that their data differ
}

// period is the number of elements after which values repeat. It is prime, so that it rarely
// divides the distance between two buffers.
const period = 1021

// maxSum is the largest value of a sum. int8 and bfloat16 represent all integers up to maxSum.
const maxSum = 120

// hash returns a pseudorandom number. It uses the finalizer of SplitMix64.
func hash(element, rank, tag uint64) uint64 {
	x := element*0x9e3779b97f4a7c15 + rank*0xbf58476d1ce4e5b9 + tag*0x94d049bb133111eb
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// inputValue returns element i of the data that a rank sends.
func (p *Pattern) inputValue(rank int, i int64) float64 {
	element := uint64(i % period)
	if p.Operation.Reduces() && p.ReduceOp == symmem.Prod {
		return p.factor(rank, element)
	}
	limit := uint64(maxSum)
	if p.Operation.Reduces() {
		// With more than 60 ranks, a sum may overflow an int8, but is still correct modulo 256.
		limit = max(2, uint64(maxSum/p.Ranks))
	}
	return float64(1 + hash(element, uint64(rank), p.Tag)%limit)
}

// factor returns a rank's input for a product. It is 2 on one rank, 3 on another rank and 1 on the
// other ranks, so that the product is small.
func (p *Pattern) factor(rank int, element uint64) float64 {
	ranks := uint64(p.Ranks)
	rankOfTwo := hash(element, 0, p.Tag) % ranks
	distance := 1 + hash(element, 1, p.Tag)%max(1, ranks-1)
	rankOfThree := (rankOfTwo + distance) % ranks
	switch uint64(rank) {
	case rankOfTwo:
		return 2
	case rankOfThree:
		return 3
	default:
		return 1
	}
}

// Reductions returns the reductions that all backends support for a type.
func Reductions(t symmem.DataType) []symmem.ReduceOp {
	return slices.DeleteFunc(driver.ReductionsOf(t), func(op symmem.ReduceOp) bool {
		return !op.IsSupportedEverywhere(t)
	})
}

// DataTypes returns the types for which all backends support reductions.
func DataTypes() []symmem.DataType {
	return slices.DeleteFunc(reduce.DataTypes(), func(t symmem.DataType) bool {
		return len(Reductions(t)) == 0
	})
}

func (p *Pattern) reducedValue(i int64) float64 {
	result := p.inputValue(0, i)
	for rank := 1; rank < p.Ranks; rank++ {
		result = formula.Pair(p.ReduceOp, result, p.inputValue(rank, i))
	}
	if !p.ReduceOp.IsAverage() {
		return result
	}
	result /= float64(p.Ranks)
	if !isFloat(p.DataType) {
		return math.Trunc(result)
	}
	return result
}

// Tolerance returns the permitted relative error. It is 0 except for averages of floats, which may
// be rounded unless the number of ranks is a power of two.
func (p *Pattern) Tolerance() float64 {
	isPowerOfTwo := p.Ranks&(p.Ranks-1) == 0
	if p.Operation.Reduces() && p.ReduceOp.IsAverage() && isFloat(p.DataType) && !isPowerOfTwo {
		return 1.0 / 32
	}
	return 0
}

// SendRecvCounts returns the numbers of elements in a rank's send and receive buffers. With
// OpSend, each rank sends to the next rank and receives from the previous one.
func (p *Pattern) SendRecvCounts(rank int) (send, recv int64) {
	if p.Operation == symmem.OpSend {
		return p.Count, p.Count
	}
	call := driver.Call{
		Operation: p.Operation, DataType: symmem.Uint8, Root: p.Root, Count: p.Count,
	}
	switch p.Operation {
	case symmem.OpAllGatherV:
		call.Splits = &symmem.Splits{RecvCounts: p.PartCounts()}
	case symmem.OpReduceScatterV:
		call.Splits = &symmem.Splits{SendCounts: p.PartCounts()}
	default: // all parts have the same size
		return call.Spans(p.Ranks, rank)
	}
	call.Splits = call.Splits.WithOffsets()
	call.Count = call.Splits.CountOf(p.Operation, rank)
	return call.Spans(p.Ranks, rank)
}

// PartCounts returns the number of elements in each rank's part, if parts have different sizes.
// Some parts are empty.
func (p *Pattern) PartCounts() []int64 {
	counts := make([]int64, p.Ranks)
	for r := range counts {
		counts[r] = p.Count * int64((uint64(r)+p.Tag)%3) / 2
	}
	return counts
}

// partOffset returns the number of elements before a rank's part in a buffer of all parts.
func (p *Pattern) partOffset(rank int) (sum int64) {
	if !p.Operation.SplitsOneBuffer() {
		return int64(rank) * p.Count
	}
	for _, count := range p.PartCounts()[:rank] {
		sum += count
	}
	return sum
}

// Input returns the data that a rank sends.
func (p *Pattern) Input(rank int) []byte {
	send, _ := p.SendRecvCounts(rank)
	return p.appendElements(nil, 0, send, func(i int64) float64 { return p.inputValue(rank, i) })
}

// Output returns the data that a rank must receive, or nil if the rank receives none.
func (p *Pattern) Output(rank int) []byte {
	part := p.partOffset(rank)
	switch p.Operation {
	case symmem.OpReduce:
		if rank != p.Root {
			return nil
		}
		return p.appendElements(nil, 0, p.Count, p.reducedValue)
	case symmem.OpReduceScatter, symmem.OpReduceScatterV:
		_, recv := p.SendRecvCounts(rank)
		return p.appendElements(nil, part, recv, p.reducedValue)
	case symmem.OpBroadcast:
		return p.Input(p.Root)
	case symmem.OpGather:
		if rank != p.Root {
			return nil
		}
		return p.concatenate(0)
	case symmem.OpScatter:
		value := func(i int64) float64 { return p.inputValue(p.Root, i) }
		return p.appendElements(nil, part, p.Count, value)
	case symmem.OpAllGather, symmem.OpAllGatherV:
		return p.concatenate(0)
	case symmem.OpAllToAll:
		return p.concatenate(part)
	case symmem.OpSend:
		return p.Input((rank + p.Ranks - 1) % p.Ranks)
	default: // OpAllReduce
		return p.appendElements(nil, 0, p.Count, p.reducedValue)
	}
}

// concatenate concatenates one part of each rank's data. The part begins at element start.
func (p *Pattern) concatenate(start int64) (all []byte) {
	for rank := range p.Ranks {
		count := p.Count
		if p.Operation.SplitsOneBuffer() {
			count, _ = p.SendRecvCounts(rank)
		}
		value := func(i int64) float64 { return p.inputValue(rank, i) }
		all = p.appendElements(all, start, count, value)
	}
	return all
}

// appendElements encodes n elements, beginning with value(start), and appends them to dst. It
// calls value only for the first period elements, and repeats them.
func (p *Pattern) appendElements(dst []byte, start, n int64, value func(i int64) float64) []byte {
	begin, byteCount := len(dst), int(n)*p.DataType.Size()
	for i := range min(n, period) {
		dst = Encode(dst, p.DataType, value(start+i))
	}
	for len(dst)-begin < byteCount {
		written := dst[begin:]
		dst = append(dst, written[:min(len(written), byteCount-len(written))]...)
	}
	return dst
}
