//go:build race

package drivertest

import "symmem/driver"

// The race detector makes everything several times slower. The races that it finds do not depend on
// counts and types. Try fewer counts and types.
func init() {
	counts = []int64{0, 1, 13, 100, 4097, 70001}
	dataTypes = []driver.DataType{driver.Float32, driver.BFloat16, driver.Int64}
}
