package reduce

import "testing"

// FuzzReduce splits the input into sources of the same size.
func FuzzReduce(f *testing.F) {
	one, nan, tiny := "\x00\x00\x80\x3f", "\x00\x00\xc0\xff", "\x01\x00\x00\x80"
	f.Add([]byte(one+nan+tiny+one), uint16(0), uint16(1))
	f.Add(make([]byte, 333), uint16(1<<4|9), uint16(3))
	f.Add([]byte{0x01, 0x7C, 0x00, 0xFC, 0xFF, 0x7B, 0xFF, 0x7B}, uint16(2), uint16(2|5<<6))
	// the maximum of two uint64, and the product of two int16
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x00\x00\x00\x00\x00\x00"), uint16(59),
		uint16(1))
	f.Add([]byte("\xff\x80\x01\x00"), uint16(20), uint16(1))
	// a scaled sum of two bfloat16, one of them infinite
	f.Add([]byte("\x80\x3f\x80\x7f"), uint16(3), uint16(1<<14|1<<6|1))
	f.Fuzz(func(t *testing.T, values []byte, kind, shape uint16) {
		typ := DataType(kind % dataTypes)
		op := ops(typ)[int(kind>>4)%len(ops(typ))]
		sourceCount := 1 + int(shape)%MaxSources
		size := len(values) / sourceCount / typ.Size() * typ.Size()
		sources := make([][]byte, sourceCount)
		for i := range sources {
			sources[i] = values[i*size : (i+1)*size]
		}

		tr := trial{
			op: op, t: typ, sources: sources, destinationCount: 1 + int(kind>>8)%4,
			inPlace: int(kind>>10)%(sourceCount+1) - 1, misalignment: int(shape>>6) % lineBytes,
			hint: Hint{Stream: shape>>12&1 == 1},
		}
		if shape>>13&1 == 1 {
			tr.op, tr.average = Sum, true
		}

		if shape>>14&1 == 1 && typ.Float() {
			tr.op, tr.factor = Sum, factors[int(shape>>6)%len(factors)]
		}

		tr.check(t, tr.want())
	})
}
