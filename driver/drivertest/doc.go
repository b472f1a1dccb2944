// Package drivertest tests the contract that every backend must satisfy. The interfaces in package
// driver document the contract.
//
// A backend's tests call Run with a Harness, which opens the device of a rank and lists the
// backend's capabilities. Ranks are goroutines of the test process. Tests access device memory only
// through Stream.Copy and Stream.Fill, because the host may be unable to access it directly.
//
// As an example, this package's tests contain a minimal backend.
//
// Tests never sleep. A wait that is expected to time out has a short deadline. Any other wait has a
// deadline so long that it expires only if the test fails.
package drivertest
