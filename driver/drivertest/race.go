//go:build race

package drivertest

import "symmem/driver"

// The race detector is several times slower, and the races that it finds do not depend on counts
// and types. So there are fewer of both.
func init() {
	counts = []int64{0, 1, 13, 100, 4097, 70001}
	dataTypes = []driver.DataType{driver.Float32, driver.BFloat16, driver.Int64}
}
