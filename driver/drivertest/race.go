//go:build race

package drivertest

import "symmem/driver"

// init reduces the numbers of counts and types, because tests are several times slower under the
// race detector and the races that it finds do not depend on them.
func init() {
	counts = []int64{0, 1, 13, 100, 4097, 70001}
	dataTypes = []driver.DataType{driver.Float32, driver.BFloat16, driver.Int64}
}
