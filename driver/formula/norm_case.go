package formula

import (
	"fmt"
	"math/rand/v2"
	"unsafe"

	"symmem/driver"
	"symmem/internal/reduce"
)

// NormCase is a test case of a norm: the inputs of all ranks, and the expected outputs. A norm
// adds up the rows of all ranks, adds a residual, and normalizes each row.
//
// For example, a case has 2 ranks and 3 rows. In an AllReduceRMSNorm, each rank has an input of 3
// rows, and all ranks must get the same 3 rows. In a ReduceScatterRMSNorm, each rank has an input
// of 6 rows. The case then has only the outputs of one rank, which are 3 rows.
//
// 16-bit elements are stored as bits. The addresses in Norm are not set.
type NormCase struct {
	driver.Norm
	Operation driver.Operation
	Rank      int // the rank with the outputs in a ReduceScatterRMSNorm, and otherwise 0
	DataType  driver.DataType
	InPlace   bool // the output replaces the input; always set if OnlyQuantized is set
	// Inputs holds the contents of each rank's Send, by rank.
	Inputs [][]uint16
	// ResidualBefore is the residual before the call. In an AllReduceRMSNorm, it is the same on all
	// ranks. In a ReduceScatterRMSNorm, it is that of Rank.
	ResidualBefore []uint16
	Weights        []uint16 // one for each element of a row; the same on all ranks
	Scale          float32  // for QuantStatic
	Want           NormRow  // outputs of all rows

	hasSpecialValues bool // AddSpecialValues has been called
}

// UnwrittenScale is the value that the scales, and the gaps between them, have before a call. Only
// the scale of QuantStatic, which is an input, has another value.
const UnwrittenScale = -1

// NewNormCase returns a case of the given shape with random values and sums in rank order.
func NewNormCase(
	random *rand.Rand, ranks, rows, hidden int, t driver.DataType, quant driver.Quant,
) *NormCase {
	const maxEpsilon = 1e-5
	c := &NormCase{
		Norm: driver.Norm{
			Rows:          int64(rows),
			Hidden:        int64(hidden),
			Epsilon:       float32(random.Float64() * maxEpsilon),
			WeightBias:    float32(random.IntN(2)), // 0 or 1
			Quant:         quant,
			OnlyQuantized: quant != driver.QuantNone && random.IntN(2) == 0,
		},
		Operation: driver.AllReduceRMSNorm,
		DataType:  t,
		Scale:     float32(random.Float64()),
	}
	c.InPlace = c.OnlyQuantized || random.IntN(2) == 0
	c.setRandomStrides(random)
	for range ranks {
		c.Inputs = append(c.Inputs, c.randomElements(random, rows*hidden))
	}

	c.ResidualBefore = c.randomElements(random, rows*hidden)
	c.Weights = c.randomElements(random, hidden)
	c.SetWant(driver.RankOrder)
	return c
}

// RandomNormCase returns a case of random shape with at most maxRows rows.
func RandomNormCase(random *rand.Rand, ranks, maxRows int) *NormCase {
	hidden := driver.NormUnit * (1 + random.IntN(600)) // elements per row; case 3 below keeps it
	switch random.IntN(4) {
	case 0: // the longest row, or a half, a quarter and so on of it
		hidden = driver.MaxHidden >> random.IntN(5)
	case 1: // any length
		hidden = driver.NormUnit * (1 + random.IntN(driver.MaxHidden/driver.NormUnit))
	case 2: // whole groups, so that QuantPerGroup is possible
		hidden = driver.QuantGroup * (1 + random.IntN(64))
	}

	quant := driver.Quant(random.IntN(4)) // any kind, including none
	t := driver.BFloat16
	if random.IntN(3) == 0 {
		t = driver.Float16
	}

	if quant == driver.QuantPerGroup && hidden%driver.QuantGroup != 0 {
		quant = driver.QuantPerRow
	}

	rowLimit := 1 << random.IntN(8) // from 1 to 128, so that few rows are frequent
	rows := min(random.IntN(rowLimit+1), maxRows)
	return NewNormCase(random, ranks, rows, hidden, t, quant)
}

func (c *NormCase) String() string {
	return fmt.Sprintf("%v of %d rows of %d %v on %d ranks, in place: %v, %s", c.Operation, c.Rows,
		c.Hidden, c.DataType, len(c.Inputs), c.InPlace, c.Describe())
}

// setRandomStrides sets the distances between the scales that the call computes. For QuantPerGroup,
// it chooses between the default and a layout in which scales of neighboring rows are adjacent.
func (c *NormCase) setRandomStrides(random *rand.Rand) {
	if c.Quant.ComputesScales() {
		c.ScaleStrides = c.DefaultScaleStrides()
	}

	if c.Quant == driver.QuantPerGroup && random.IntN(2) == 0 {
		const betweenRows = 1
		betweenGroups := (c.Rows + 3) / 4 * 4 // rounded up to a multiple of 4
		c.ScaleStrides = [2]int64{betweenRows, betweenGroups}
	}
}

// randomElements returns n elements of the case's type, with a normal distribution.
func (c *NormCase) randomElements(random *rand.Rand, n int) []uint16 {
	encode := reduce.BFloat16Bits
	if c.DataType == driver.Float16 {
		encode = reduce.Float16Bits
	}

	values := make([]uint16, n)
	for i := range values {
		values[i] = encode(float32(random.NormFloat64()))
	}

	return values
}

// AddSpecialValues replaces about one in eight elements of the inputs and the residual with a
// special value, such as a NaN, except in every fourth row. It also sets Want.
func (c *NormCase) AddSpecialValues(random *rand.Rand) {
	c.hasSpecialValues = true
	for _, rows := range c.Inputs {
		c.replaceElements(random, rows)
	}

	c.replaceElements(random, c.ResidualBefore)
	c.SetWant(driver.RankOrder)
}

// replaceElements is AddSpecialValues for one input or residual.
func (c *NormCase) replaceElements(random *rand.Rand, rows []uint16) {
	values := specialValues[c.DataType]
	for i := range rows {
		row := int64(i) / c.Hidden
		isKept := row%4 == 0
		if !isKept && random.IntN(8) == 0 {
			rows[i] = uint16(values[random.IntN(len(values))])
		}
	}
}

// Scatter returns the cases of all ranks for a ReduceScatterRMSNorm with the arguments of c. Each
// rank gets as many rows as c has. The values are random and differ from those of c.
func (c *NormCase) Scatter(random *rand.Rand) (cases []*NormCase) {
	ranks := len(c.Inputs)
	count := int(c.Rows * c.Hidden) // elements of one rank's output
	drawRows := func(n int) []uint16 {
		rows := c.randomElements(random, n)
		if c.hasSpecialValues {
			c.replaceElements(random, rows)
		}

		return rows
	}
	inputs := make([][]uint16, ranks)
	for i := range inputs {
		inputs[i] = drawRows(ranks * count)
	}

	for rank := range ranks {
		s := *c
		s.Operation = driver.ReduceScatterRMSNorm
		s.Rank = rank
		s.Inputs = inputs
		s.ResidualBefore = drawRows(count)
		s.SetWant(driver.RankOrder)
		cases = append(cases, &s)
	}

	return cases
}

// SetWant sets Want to the outputs in a group with the given formula.
func (c *NormCase) SetWant(f driver.Formula) {
	c.Want = NormRow{}
	var inputs [][]byte
	count := len(c.ResidualBefore) // elements of the output
	first := c.Rank * count        // in each input; Rank is 0 in an AllReduceRMSNorm
	for _, rows := range c.Inputs {
		inputs = append(inputs, Bytes(rows[first:first+count]))
	}

	sums := elementsOf[uint16](Reduce(f, driver.Sum, c.DataType, inputs))
	for row := range int(c.Rows) {
		from := row * int(c.Hidden)
		to := from + int(c.Hidden)
		r := Norm(&c.Norm, c.DataType, sums[from:to], c.ResidualBefore[from:to], c.Weights, c.Scale)
		c.Want.Residual = append(c.Want.Residual, r.Residual...)
		c.Want.Output = append(c.Want.Output, r.Output...)
		c.Want.Quantized = append(c.Want.Quantized, r.Quantized...)
		c.setWantScales(row, r.Scales)
	}

	if c.Quant == driver.QuantStatic {
		c.Want.Scales = []float32{c.Scale}
	}
}

// setWantScales stores the scales of a row in Want.Scales, at the distances in ScaleStrides.
func (c *NormCase) setWantScales(row int, scales []float32) {
	for group, scale := range scales {
		index := row*int(c.ScaleStrides[0]) + group*int(c.ScaleStrides[1])
		for len(c.Want.Scales) <= index { // fill gaps
			c.Want.Scales = append(c.Want.Scales, UnwrittenScale)
		}

		c.Want.Scales[index] = scale
	}
}

// ScalesBefore returns the values that a test must store at Norm.Scales before the call.
func (c *NormCase) ScalesBefore() []float32 {
	scales := make([]float32, len(c.Want.Scales))
	for i := range scales {
		scales[i] = UnwrittenScale
	}

	if c.Quant == driver.QuantStatic {
		scales[0] = c.Scale
	}

	return scales
}

// Bytes returns the memory of elements as bytes, without a copy.
func Bytes[T uint8 | uint16 | float32](elements []T) []byte {
	var element T
	first := (*byte)(unsafe.Pointer(unsafe.SliceData(elements)))
	return unsafe.Slice(first, len(elements)*int(unsafe.Sizeof(element)))
}

// SetCanonicalNaNs replaces each NaN in float32 values with the NaN that Norm returns, because the
// bits of a NaN depend on the hardware.
func SetCanonicalNaNs(values []byte) {
	elements := elementsOf[float32](values)
	for i, v := range elements {
		if isNaN(v) {
			elements[i] = canonicalNaN
		}
	}
}
