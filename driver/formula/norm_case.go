package formula

import (
	"fmt"
	"math/rand/v2"
	"unsafe"

	"symmem/driver"
	"symmem/internal/reduce"
)

// NormCase holds the inputs of an AllReduceRMSNorm on all ranks, and the outputs that every rank
// must get. 16-bit elements are stored as bits. The addresses in Norm are not set.
type NormCase struct {
	driver.Norm
	DataType driver.DataType
	InPlace  bool // the output replaces the input, as always if OnlyQuantized is set
	// Inputs holds each rank's rows. ResidualBefore and Weights are the same on all ranks.
	Inputs                  [][]uint16
	ResidualBefore, Weights []uint16
	Scale                   float32 // for QuantStatic
	Want                    NormRow // all rows
}

// UnwrittenScale is the value before a call of the scales, except for QuantStatic, and of the gaps
// between them.
const UnwrittenScale = -1

// NewNormCase returns a case of the given shape with random values and sums in rank order.
func NewNormCase(
	random *rand.Rand, ranks, rows, hidden int, t driver.DataType, quant driver.Quant,
) *NormCase {
	c := &NormCase{
		Norm: driver.Norm{
			Rows: int64(rows), Hidden: int64(hidden), Epsilon: float32(random.Float64() * 1e-5),
			WeightBias: float32(random.IntN(2)), Quant: quant,
			OnlyQuantized: quant != driver.QuantNone && random.IntN(2) == 0,
		},
		DataType: t, Scale: float32(random.Float64()),
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
	hidden := driver.NormUnit * (1 + random.IntN(600))
	switch random.IntN(4) {
	case 0:
		hidden = driver.MaxHidden >> random.IntN(5)
	case 1:
		hidden = driver.NormUnit * (1 + random.IntN(driver.MaxHidden/driver.NormUnit))
	case 2:
		hidden = driver.QuantGroup * (1 + random.IntN(64))
	}
	t, quant := driver.BFloat16, driver.Quant(random.IntN(4))
	if random.IntN(3) == 0 {
		t = driver.Float16
	}
	if quant == driver.QuantPerGroup && hidden%driver.QuantGroup != 0 {
		quant = driver.QuantPerRow
	}
	rows := min(random.IntN(1<<random.IntN(8)+1), maxRows)
	return NewNormCase(random, ranks, rows, hidden, t, quant)
}

func (c *NormCase) String() string {
	return fmt.Sprintf("%d rows of %d %v on %d ranks, in place: %v, %s", c.Rows, c.Hidden, c.DataType,
		len(c.Inputs), c.InPlace, c.Describe())
}

func (c *NormCase) setRandomStrides(random *rand.Rand) {
	if c.Quant.ComputesScales() {
		c.ScaleStrides = c.DefaultScaleStrides()
	}
	if c.Quant == driver.QuantPerGroup && random.IntN(2) == 0 {
		c.ScaleStrides = [2]int64{1, (c.Rows + 3) / 4 * 4}
	}
}

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

// AddSpecialValues replaces one in eight elements of the inputs and the residual with a special
// value, except in every fourth row.
func (c *NormCase) AddSpecialValues(random *rand.Rand) {
	values := specialValues[c.DataType]
	for _, rows := range append(c.Inputs, c.ResidualBefore) {
		for i := range rows {
			if int64(i)/c.Hidden%4 != 0 && random.IntN(8) == 0 {
				rows[i] = uint16(values[random.IntN(len(values))])
			}
		}
	}
	c.SetWant(driver.RankOrder)
}

// SetWant sets Want to the outputs in a group with the given formula.
func (c *NormCase) SetWant(f driver.Formula) {
	c.Want = NormRow{}
	var inputs [][]byte
	for _, rows := range c.Inputs {
		inputs = append(inputs, Bytes(rows))
	}
	sums := elementsOf[uint16](Reduce(f, driver.Sum, c.DataType, inputs))
	for row := range int(c.Rows) {
		from, to := row*int(c.Hidden), (row+1)*int(c.Hidden)
		r := Norm(&c.Norm, c.DataType, sums[from:to], c.ResidualBefore[from:to], c.Weights, c.Scale)
		c.Want.Residual = append(c.Want.Residual, r.Residual...)
		c.Want.Output = append(c.Want.Output, r.Output...)
		c.Want.Quantized = append(c.Want.Quantized, r.Quantized...)
		for g, scale := range r.Scales {
			index := row*int(c.ScaleStrides[0]) + g*int(c.ScaleStrides[1])
			for len(c.Want.Scales) <= index {
				c.Want.Scales = append(c.Want.Scales, UnwrittenScale)
			}
			c.Want.Scales[index] = scale
		}
	}
	if c.Quant == driver.QuantStatic {
		c.Want.Scales = []float32{c.Scale}
	}
}

// ScalesBefore returns the values that a test must store in the scales before the call.
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

// Bytes returns the bytes of elements, without a copy.
func Bytes[T uint8 | uint16 | float32](elements []T) []byte {
	var element T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(elements))),
		len(elements)*int(unsafe.Sizeof(element)))
}

// SetCanonicalNaNs replaces each NaN in float32 values with the NaN that Norm returns, because the
// bits of a NaN depend on the hardware.
func SetCanonicalNaNs(values []byte) {
	elements := elementsOf[float32](values)
	for i, v := range elements {
		if v != v {
			elements[i] = canonicalNaN
		}
	}
}
