//go:build race

package drivertest

// The race detector makes everything several times as slow, and looks for other mistakes than those
// that depend on counts.
func init() { counts = []int64{0, 1, 13, 100, 4097, 70001} }
