package host

import (
	"testing"

	"symmem/driver"
	"symmem/driver/drivertest"
)

func TestContract(t *testing.T) {
	const floats, integers = "sum prod min max avg premul_sum", "sum prod min max avg band bor bxor"
	drivertest.Run(t, drivertest.Harness{
		Open: Backend{}.Open, Ranks: 8,
		Reductions: map[driver.DataType]string{
			driver.Float64: floats, driver.Float32: floats, driver.Float16: floats,
			driver.BFloat16: floats, driver.Int8: integers, driver.Uint8: integers,
			driver.Int16: integers, driver.Uint16: integers, driver.Int32: integers,
			driver.Uint32: integers, driver.Int64: integers, driver.Uint64: integers,
		},
	})
}
