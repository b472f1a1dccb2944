//go:build race

package drivertest

import "symmem/driver"

// init reduces the numbers of counts and types, because the race detector slows tests down.
func init() {
	elementCounts = []int64{0, 1, 13, 100, 4097, 70001}
	dataTypes = []driver.DataType{driver.Float32, driver.BFloat16, driver.Int64}
}
