package binding

import (
	"fmt"

	"symmem"
	"symmem/driver"
)

// Each table lists the Go values of an enum in symmem.h by number.
var (
	types = []symmem.DataType{
		symmem.Float64, symmem.Float32, symmem.Float16, symmem.BFloat16,
		symmem.Int8, symmem.Int32, symmem.Int64, symmem.Uint8,
		symmem.Int16, symmem.Uint16, symmem.Uint32, symmem.Uint64,
	}
	reductions = valuesBelow(symmem.ReduceOp(driver.ReduceOps))
	operations = valuesBelow(symmem.OpAllReduceRMSNorm)
	values     = []symmem.ValueOperation{
		0, // no operation has the number 0
		symmem.ValueAgree, symmem.ValueAny, symmem.ValueAll, symmem.ValueMin, symmem.ValueMax,
		symmem.ValueSum, symmem.ValueStep, symmem.ValueAgreeFloat,
	}
	paths = []symmem.PathChoice{
		symmem.PathDefault, symmem.PathAuto, symmem.PathPlain, symmem.PathWindow,
		symmem.PathDirect, symmem.PathTwoLevel,
	}
	checkLevels = []symmem.CheckLevel{
		symmem.CheckDefault, symmem.CheckOff, symmem.CheckRegistration, symmem.CheckEvery,
	}
)

// valuesBelow returns the table of an enum whose numbers are the same in C and Go: 0 to end-1.
func valuesBelow[T ~uint8](end T) []T {
	all := make([]T, end)
	for i := range all {
		all[i] = T(i)
	}

	return all
}

// parseEnum returns the Go value for a number from C. name names the enum in errors.
func parseEnum[T any](name string, table []T, number int) (T, error) {
	if number >= 0 && number < len(table) {
		return table[number], nil
	}

	var none T
	return none, fmt.Errorf("%s %d does not exist; want 0 to %d: %w",
		name, number, len(table)-1, symmem.ErrInvalid)
}
