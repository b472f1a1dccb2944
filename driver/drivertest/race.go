//go:build race

package drivertest

import "symmem/driver"

// init reduces the numbers of counts and types under the race detector, which makes tests several
// times slower and finds the same races with fewer of them.
func init() {
	counts = []int64{0, 1, 13, 100, 4097, 70001}
	dataTypes = []driver.DataType{driver.Float32, driver.BFloat16, driver.Int64}
}
