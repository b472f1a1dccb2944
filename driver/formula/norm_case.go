package formula

import (
	"fmt"
	"math/rand/v2"
	"unsafe"

	"symmem/driver"
	"symmem/internal/reduce"
)

// NormCase is a test case of a norm, which adds the rows of all ranks and a residual, and
// normalizes each row. In an AllReduceRMSNorm, all ranks pass Rows rows and get the same results.
// In a ReduceScatterRMSNorm, each rank passes Rows rows for every rank, and the case holds the
// results of one rank.
type NormCase struct {
	driver.Norm    // without addresses
	Operation      driver.Operation
	Rank           int // rank with these results; 0 if all ranks get them
	DataType       driver.DataType
	InPlace        bool       // the output replaces the input; always true with OnlyQuantized
	Inputs         [][]uint16 // bits of the elements to send, by rank
	ResidualBefore []uint16   // of Rank's rows
	Weights        []uint16   // of the elements of a row; the same on all ranks
	Scale          float32    // for QuantStatic
	Want           NormRow    // results of all of Rank's rows

	hasSpecialValues bool
}

// UnwrittenScale marks scales, and gaps between scales, that a call has not written.
const UnwrittenScale = -1

// NewNormCase returns a case with random values, for a group that adds in rank order.
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
	const maxShortUnits, maxUnits = 600, driver.MaxHidden / driver.NormUnit
	const maxGroups = 64
	shortHidden := driver.NormUnit * (1 + random.IntN(maxShortUnits))
	var hidden int
	switch random.IntN(4) {
	case 0:
		hidden = driver.MaxHidden >> random.IntN(5) // a power of 2
	case 1:
		hidden = driver.NormUnit * (1 + random.IntN(maxUnits))
	case 2: // QuantPerGroup requires whole groups
		hidden = driver.QuantGroup * (1 + random.IntN(maxGroups))
	case 3:
		hidden = shortHidden
	}

	const quantCount = 4 // including QuantNone
	quant := driver.Quant(random.IntN(quantCount))
	t := driver.BFloat16
	if random.IntN(3) == 0 {
		t = driver.Float16
	}

	hasWholeGroups := hidden%driver.QuantGroup == 0
	if quant == driver.QuantPerGroup && !hasWholeGroups {
		quant = driver.QuantPerRow
	}

	rowLimit := 1 << random.IntN(8) // makes small numbers of rows frequent
	rows := min(random.IntN(rowLimit+1), maxRows)
	return NewNormCase(random, ranks, rows, hidden, t, quant)
}

func (c *NormCase) String() string {
	return fmt.Sprintf("%v of %d rows of %d %v on %d ranks, in place: %v, %s", c.Operation, c.Rows,
		c.Hidden, c.DataType, len(c.Inputs), c.InPlace, c.Describe())
}

// setRandomStrides sets the strides of computed scales. With QuantPerGroup, it chooses between the
// default layout and a transposed one, in which the scales of all rows for a group are adjacent.
func (c *NormCase) setRandomStrides(random *rand.Rand) {
	if c.Quant.ComputesScales() {
		c.ScaleStrides = c.DefaultScaleStrides()
	}

	if c.Quant == driver.QuantPerGroup && random.IntN(2) == 0 {
		const betweenRows = 1
		const align = 4
		betweenGroups := (c.Rows + align - 1) / align * align
		c.ScaleStrides = [2]int64{betweenRows, betweenGroups}
	}
}

// randomElements returns elements with a normal distribution.
func (c *NormCase) randomElements(random *rand.Rand, count int) []uint16 {
	encode := reduce.BFloat16Bits
	if c.DataType == driver.Float16 {
		encode = reduce.Float16Bits
	}

	elements := make([]uint16, count)
	for i := range elements {
		elements[i] = encode(float32(random.NormFloat64()))
	}

	return elements
}

// AddSpecialValues replaces about one in eight elements of the inputs and the residual with a
// special value, such as a NaN. It leaves every fourth row as it is, and updates Want.
func (c *NormCase) AddSpecialValues(random *rand.Rand) {
	c.hasSpecialValues = true
	for _, rows := range c.Inputs {
		c.insertSpecialValues(random, rows)
	}

	c.insertSpecialValues(random, c.ResidualBefore)
	c.SetWant(driver.RankOrder)
}

func (c *NormCase) insertSpecialValues(random *rand.Rand, rows []uint16) {
	values := specialValues[c.DataType]
	for i := range rows {
		row := int64(i) / c.Hidden
		keepsRow := row%4 == 0
		if keepsRow {
			continue
		}

		replacesElement := random.IntN(8) == 0
		if replacesElement {
			rows[i] = uint16(values[random.IntN(len(values))])
		}
	}
}

// Scatter returns the cases of all ranks for a ReduceScatterRMSNorm with the arguments of c and new
// random values. Each rank gets as many rows as c has.
func (c *NormCase) Scatter(random *rand.Rand) (cases []*NormCase) {
	ranks := len(c.Inputs)
	outputCount := int(c.Rows * c.Hidden) // elements of one rank's output
	inputs := make([][]uint16, ranks)
	for i := range inputs {
		inputs[i] = c.randomRows(random, ranks*outputCount)
	}

	for rank := range ranks {
		scattered := *c
		scattered.Operation = driver.ReduceScatterRMSNorm
		scattered.Rank = rank
		scattered.Inputs = inputs
		scattered.ResidualBefore = c.randomRows(random, outputCount)
		scattered.SetWant(driver.RankOrder)
		cases = append(cases, &scattered)
	}

	return cases
}

// randomRows returns elements that include special values if those of c do.
func (c *NormCase) randomRows(random *rand.Rand, count int) []uint16 {
	rows := c.randomElements(random, count)
	if c.hasSpecialValues {
		c.insertSpecialValues(random, rows)
	}

	return rows
}

// SetWant sets Want for a group with the given formula.
func (c *NormCase) SetWant(f driver.Formula) {
	c.Want = NormRow{}
	var inputs [][]byte
	count := len(c.ResidualBefore) // elements of Rank's output
	first := c.Rank * count        // index in each input
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

// setWantScales stores the scales of a row with the strides of the case.
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

// Bytes reinterprets elements as bytes, without a copy.
func Bytes[T uint8 | uint16 | float32](elements []T) []byte {
	var element T
	first := (*byte)(unsafe.Pointer(unsafe.SliceData(elements)))
	return unsafe.Slice(first, len(elements)*int(unsafe.Sizeof(element)))
}

// SetCanonicalNaNs replaces each NaN in float32 values with the one that Norm returns, because the
// bits of a NaN depend on the hardware.
func SetCanonicalNaNs(values []byte) {
	elements := elementsOf[float32](values)
	for i, v := range elements {
		if isNaN(v) {
			elements[i] = canonicalNaN
		}
	}
}
