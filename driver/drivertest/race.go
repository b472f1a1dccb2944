//go:build race

package drivertest

import "symmem/driver"

// init reduces the numbers of counts and types under the race detector. Tests are several times
// slower there, and the races it finds do not depend on these numbers.
func init() {
	counts = []int64{0, 1, 13, 100, 4097, 70001}
	dataTypes = []driver.DataType{driver.Float32, driver.BFloat16, driver.Int64}
}
