package workload

import (
	"math"
	"slices"

	"symmem"
	"symmem/driver"
	"symmem/driver/formula"
	"symmem/internal/reduce"
)

// A test fills the input of each call with known values, and checks every element of the output.
// Suppose that ranks 0 and 1 sum int32 elements in an AllReduce. Each element of the input is a
// pseudorandom number from 1 to 60. If element 0 is 17 on rank 0 and 42 on rank 1, both ranks must
// receive 59 as element 0.
//
// The number depends on the rank, on the index of the element, and on the call's Tag. Thus, a test
// notices if a rank receives elements from a wrong rank, a wrong place or an earlier call.
//
// A buffer can consist of parts, one for each rank in the order of ranks. For example, the input of
// a ReduceScatter on ranks 0 and 1 has two parts. Rank 0 receives the sums of the first parts, and
// rank 1 those of the second parts.

// Pattern defines the input and the right output of one call on all ranks.
type Pattern struct {
	Operation symmem.Operation
	DataType  symmem.DataType
	ReduceOp  symmem.ReduceOp // ignored unless the operation reduces
	// Count is the count argument of the call: the size of a part or, without parts, of a buffer, in
	// elements. The parts of AllGatherV and ReduceScatterV have different sizes, see PartCounts.
	// Count is then the largest possible size.
	Count int64
	Root  int    // rank in the group; ignored unless the operation has a root
	Ranks int    // number of ranks in the group
	Tag   uint64 // a different number for each call
}

// maxSum is the largest sum over up to 60 ranks. int8 and bfloat16 represent all integers up to it.
// Sums over more ranks can overflow an int8, but are still correct modulo 256.
const maxSum = 120

// period is the number of elements after which an input repeats. It is prime, so it rarely divides
// the distance between two parts. If it did, both parts would have the same values, and a test
// would not notice that one replaced the other.
const period = 1021

// hash returns a pseudorandom number, the same for the same arguments. It mixes the bits like the
// random generator SplitMix64.
func hash(element, rank, tag uint64) uint64 {
	x := element*0x9e3779b97f4a7c15 + rank*0xbf58476d1ce4e5b9 + tag*0x94d049bb133111eb
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// inputValue returns element i of a rank's input.
func (p *Pattern) inputValue(rank int, i int64) float64 {
	element := uint64(i % period)
	isProduct := p.Operation.Reduces() && p.ReduceOp == symmem.Prod
	if isProduct {
		return p.factor(rank, element)
	}

	limit := uint64(maxSum)
	if p.Operation.Reduces() {
		limit = max(2, uint64(maxSum/p.Ranks)) // With 1 as the limit, all inputs would be equal.
	}

	value := 1 + hash(element, uint64(rank), p.Tag)%limit // from 1 to limit
	return float64(value)
}

// factor returns an element of a rank's input for a product. It is 2 on one rank, 3 on another rank
// and 1 on the other ranks, so that the product is at most 6.
func (p *Pattern) factor(rank int, element uint64) float64 {
	ranks := uint64(p.Ranks)
	rankOfTwo := hash(element, 0, p.Tag) % ranks
	otherRanks := max(1, ranks-1)                      // not 0, by which % cannot divide
	distance := 1 + hash(element, 1, p.Tag)%otherRanks // from 1 to ranks-1
	rankOfThree := (rankOfTwo + distance) % ranks      // not rankOfTwo, unless ranks is 1
	switch uint64(rank) {
	case rankOfTwo:
		return 2
	case rankOfThree:
		return 3
	default:
		return 1
	}
}

// reducedValue returns element i of the reduction of all ranks' inputs.
func (p *Pattern) reducedValue(i int64) float64 {
	result := p.inputValue(0, i)
	for rank := 1; rank < p.Ranks; rank++ {
		result = formula.Pair(p.ReduceOp, result, p.inputValue(rank, i))
	}

	if !p.ReduceOp.IsAverage() {
		return result
	}

	mean := result / float64(p.Ranks)
	if isFloat(p.DataType) {
		return mean
	}

	return math.Trunc(mean)
}

// Tolerance returns the permitted relative error of an element of the output. It is 0, except for
// averages of floats over a number of ranks that is not a power of two. These can be rounded.
func (p *Pattern) Tolerance() float64 {
	isAverage := p.Operation.Reduces() && p.ReduceOp.IsAverage()
	isPowerOfTwo := p.Ranks&(p.Ranks-1) == 0
	canBeRounded := isAverage && isFloat(p.DataType) && !isPowerOfTwo
	if canBeRounded {
		return 1.0 / 32 // a few units in the last place of a bfloat16
	}

	return 0
}

// PartCounts returns the size of each rank's part of an AllGatherV or ReduceScatterV, in elements.
// The sizes are 0, half of Count, Count, then 0 again, and so on. The Tag determines which of them
// is the size of rank 0's part.
func (p *Pattern) PartCounts() []int64 {
	counts := make([]int64, p.Ranks)
	for rank := range counts {
		halves := (uint64(rank) + p.Tag) % 3 // 0, 1 or 2
		counts[rank] = p.Count * int64(halves) / 2
	}

	return counts
}

// partOffset returns the number of elements before a rank's part in a buffer of all parts.
func (p *Pattern) partOffset(rank int) int64 {
	haveEqualSizes := !p.Operation.SplitsOneBuffer()
	if haveEqualSizes {
		return int64(rank) * p.Count
	}

	sum := int64(0)
	for _, count := range p.PartCounts()[:rank] {
		sum += count
	}

	return sum
}

// SendRecvCounts returns the sizes of a rank's send and receive buffers, in elements. OpSend stands
// for a Send to the next rank together with a Recv from the previous rank.
func (p *Pattern) SendRecvCounts(rank int) (send, recv int64) {
	if p.Operation == symmem.OpSend {
		return p.Count, p.Count
	}

	call := driver.Call{
		Operation: p.Operation, Root: p.Root, Count: p.Count,
		DataType: symmem.Uint8, // Spans returns bytes, which are elements of this type.
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

// Input returns the data that a rank sends.
func (p *Pattern) Input(rank int) []byte {
	count, _ := p.SendRecvCounts(rank)
	return p.inputRange(rank, 0, count)
}

// inputRange returns count elements of a rank's input, beginning with element start.
func (p *Pattern) inputRange(rank int, start, count int64) []byte {
	value := func(i int64) float64 { return p.inputValue(rank, i) }
	return p.encodeRange(start, count, value)
}

// encodeRange returns the encoded elements value(start) to value(start+count-1). It calls value
// only for the first period elements, and then repeats them.
func (p *Pattern) encodeRange(start, count int64, value func(i int64) float64) []byte {
	byteCount := int(count) * p.DataType.Size()
	var encoded []byte
	for i := range min(count, period) {
		encoded = Encode(encoded, p.DataType, value(start+i))
	}

	for len(encoded) < byteCount {
		missing := byteCount - len(encoded)
		encoded = append(encoded, encoded[:min(len(encoded), missing)]...)
	}

	return encoded
}

// Output returns the data that a rank must receive, or nil if the rank receives none.
func (p *Pattern) Output(rank int) []byte {
	receivesNothing := p.hasOutputOnlyOnRoot() && rank != p.Root
	if receivesNothing {
		return nil
	}

	ownPart := p.partOffset(rank)
	switch p.Operation {
	case symmem.OpReduceScatter, symmem.OpReduceScatterV:
		_, count := p.SendRecvCounts(rank)
		return p.encodeRange(ownPart, count, p.reducedValue)
	case symmem.OpBroadcast:
		return p.Input(p.Root)
	case symmem.OpScatter:
		return p.inputRange(p.Root, ownPart, p.Count)
	case symmem.OpGather, symmem.OpAllGather, symmem.OpAllGatherV:
		return p.joinParts(0) // each rank sends one part
	case symmem.OpAllToAll:
		return p.joinParts(ownPart)
	case symmem.OpSend:
		previous := (rank + p.Ranks - 1) % p.Ranks
		return p.Input(previous)
	default: // OpAllReduce, or OpReduce on the root
		return p.encodeRange(0, p.Count, p.reducedValue)
	}
}

// hasOutputOnlyOnRoot reports whether the other ranks receive nothing.
func (p *Pattern) hasOutputOnlyOnRoot() bool {
	return p.Operation == symmem.OpReduce || p.Operation == symmem.OpGather
}

// joinParts returns one part of each rank's input, in the order of ranks. In each input, this part
// begins at element start.
func (p *Pattern) joinParts(start int64) []byte {
	var all []byte
	for rank := range p.Ranks {
		count := p.Count
		if p.Operation.SplitsOneBuffer() { // an AllGatherV, whose parts have different sizes
			count, _ = p.SendRecvCounts(rank)
		}

		all = append(all, p.inputRange(rank, start, count)...)
	}

	return all
}

// DataTypes returns the types for which all backends support reductions.
func DataTypes() []symmem.DataType {
	return slices.DeleteFunc(reduce.DataTypes(), func(t symmem.DataType) bool {
		return len(Reductions(t)) == 0
	})
}

// Reductions returns the reductions that all backends support for a type.
func Reductions(t symmem.DataType) []symmem.ReduceOp {
	return slices.DeleteFunc(driver.ReductionsOf(t), func(op symmem.ReduceOp) bool {
		return !op.IsSupportedEverywhere(t)
	})
}
