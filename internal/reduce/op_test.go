package reduce

import "testing"

func TestDataTypeNamesRoundTrip(t *testing.T) {
	for _, want := range DataTypes() {
		if got, err := ParseDataType(want.String()); err != nil || got != want {
			t.Errorf("ParseDataType(%q) = %v, %v; want %v", want, got, err, want)
		}
	}

	if _, err := ParseDataType("float8"); err == nil {
		t.Error("ParseDataType returned no error for an unknown name")
	}
}

func TestInvalidDataTypePrintsNumber(t *testing.T) {
	if got := DataType(200).String(); got != "DataType(200)" {
		t.Errorf("got %q, want DataType(200)", got)
	}
}

func TestSizeAndFloat(t *testing.T) {
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
			t.Errorf("%v: Size = %d, Float = %v; want %d, %v", typ, typ.Size(), typ.Float(), want.size,
				want.float)
		}
	}
}
