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
	// Count is the count argument of the call. AllGatherV and ReduceScatterV have parts of different
	// sizes instead; see PartCounts. Count is then the largest possible size of a part.
	Count int64
	Root  int    // rank in the group; ignored unless the operation has a root
	Ranks int    // number of ranks in the group
	Tag   uint64 // differs between calls, so that their data differ
}

// period is the number of elements after which values repeat. It is prime, so it rarely divides the
// distance between two parts. Otherwise, a part at a wrong place could have the right values.
const period = 1021

// maxSum is the largest value of a sum. int8 and bfloat16 represent all integers up to maxSum.
const maxSum = 120

// hash returns a pseudorandom number, the same for the same arguments. It mixes the bits like the
// random generator SplitMix64.
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
		// With many ranks, the values are 1 and 2. With more than 60 ranks, a sum may thus exceed
		// maxSum and overflow an int8, but it is still correct modulo 256.
		limit = max(2, uint64(maxSum/p.Ranks))
	}

	value := 1 + hash(element, uint64(rank), p.Tag)%limit // from 1 to limit
	return float64(value)
}

// factor returns a rank's input for a product. It is 2 on one rank, 3 on another rank and 1 on the
// other ranks, so that the product is small.
func (p *Pattern) factor(rank int, element uint64) float64 {
	ranks := uint64(p.Ranks)
	rankOfTwo := hash(element, 0, p.Tag) % ranks
	// The distance is from 1 to ranks-1, so the ranks differ. A single rank has the factor 2.
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

// reducedValue returns element i of the result of a reduction over all ranks.
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
	isAverage := p.Operation.Reduces() && p.ReduceOp.IsAverage()
	isPowerOfTwo := p.Ranks&(p.Ranks-1) == 0
	if isAverage && isFloat(p.DataType) && !isPowerOfTwo {
		return 1.0 / 32 // a few units in the last place of a bfloat16
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
		Operation: p.Operation, Root: p.Root, Count: p.Count,
		DataType: symmem.Uint8, // so that bytes, which Spans returns, are elements
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

// PartCounts returns the number of elements in each rank's part, if parts have different sizes. A
// part is empty, half of Count, or all of Count, in turn by rank. The Tag selects the first size.
func (p *Pattern) PartCounts() []int64 {
	counts := make([]int64, p.Ranks)
	for rank := range counts {
		halves := (uint64(rank) + p.Tag) % 3
		counts[rank] = p.Count * int64(halves) / 2
	}

	return counts
}

// partOffset returns the number of elements before a rank's part in a buffer of all parts.
func (p *Pattern) partOffset(rank int) int64 {
	if !p.Operation.SplitsOneBuffer() { // all parts have the same size
		return int64(rank) * p.Count
	}

	sum := int64(0)
	for _, count := range p.PartCounts()[:rank] {
		sum += count
	}

	return sum
}

// Input returns the data that a rank sends.
func (p *Pattern) Input(rank int) []byte {
	count, _ := p.SendRecvCounts(rank)
	return p.inputRange(rank, 0, count)
}

// inputRange returns count elements of the data that a rank sends, beginning with element start.
func (p *Pattern) inputRange(rank int, start, count int64) []byte {
	value := func(i int64) float64 { return p.inputValue(rank, i) }
	return p.encodeRange(start, count, value)
}

// Output returns the data that a rank must receive, or nil if the rank receives none.
func (p *Pattern) Output(rank int) []byte {
	ownPart := p.partOffset(rank)
	switch p.Operation {
	case symmem.OpReduce:
		if rank != p.Root {
			return nil
		}

		return p.encodeRange(0, p.Count, p.reducedValue)
	case symmem.OpReduceScatter, symmem.OpReduceScatterV:
		_, count := p.SendRecvCounts(rank)
		return p.encodeRange(ownPart, count, p.reducedValue)
	case symmem.OpBroadcast:
		return p.Input(p.Root)
	case symmem.OpGather:
		if rank != p.Root {
			return nil
		}

		return p.concatenate(0)
	case symmem.OpScatter:
		return p.inputRange(p.Root, ownPart, p.Count)
	case symmem.OpAllGather, symmem.OpAllGatherV:
		return p.concatenate(0)
	case symmem.OpAllToAll:
		return p.concatenate(ownPart)
	case symmem.OpSend:
		previous := (rank + p.Ranks - 1) % p.Ranks
		return p.Input(previous)
	default: // OpAllReduce
		return p.encodeRange(0, p.Count, p.reducedValue)
	}
}

// concatenate returns one part of the data that each rank sends, in the order of ranks. In the data
// of each rank, the part begins at element start.
func (p *Pattern) concatenate(start int64) []byte {
	var all []byte
	for rank := range p.Ranks {
		count := p.Count
		if p.Operation.SplitsOneBuffer() { // the ranks send parts of different sizes
			count, _ = p.SendRecvCounts(rank)
		}

		all = append(all, p.inputRange(rank, start, count)...)
	}

	return all
}

// encodeRange returns the encoded elements value(start) to value(start+count-1). It calls value
// only for the first period elements, and repeats them.
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
