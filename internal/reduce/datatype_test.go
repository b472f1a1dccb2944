package reduce

import "testing"

func TestDataTypeNamesRoundTrip(t *testing.T) {
	for _, want := range DataTypes() {
		if got, err := ParseDataType(want.String()); err != nil || got != want {
			t.Errorf("ParseDataType(%v) = %v, %v", want, got, err)
		}
	}
	if _, err := ParseDataType("float8"); err == nil {
		t.Error("ParseDataType of an unknown name returned no error")
	}
}

func TestInvalidValuesPrintTheirNumber(t *testing.T) {
	if got := DataType(200).String(); got != "DataType(200)" {
		t.Errorf("got %q, want DataType(200)", got)
	}
}

func TestSizesAndClassesOfDataTypes(t *testing.T) {
	cases := map[DataType]struct {
		size  int
		float bool
	}{
		Float32: {4, true}, Float64: {8, true}, Float16: {2, true}, BFloat16: {2, true},
		Int8: {1, false}, Uint8: {1, false}, Int32: {4, false}, Int64: {8, false},
		Int16: {2, false}, Uint16: {2, false}, Uint32: {4, false}, Uint64: {8, false},
	}
	for _, typ := range DataTypes() {
		want, known := cases[typ]
		if !known || typ.Size() != want.size || typ.Float() != want.float {
			t.Errorf("%v: size %d, float %v, want %+v", typ, typ.Size(), typ.Float(), want)
		}
	}
}
