// Package drivertest tests the contract that every backend must satisfy, as documented with the
// interfaces in package driver.
//
// A backend's tests call Run with a Harness, which opens the device of a rank and lists the
// backend's capabilities. Ranks are goroutines of the test process, and the suite supplies the
// store that they share. Tests access device memory only through Stream.Copy and Stream.Fill,
// because the host may not be able to access it.
//
// As an example, the tests of this package contain the smallest backend that passes.
//
// Tests never sleep. If a deadline must end a wait, the test lets the deadline expire and checks
// the error. If anything else must end a wait, the deadline is so long that a wait until the
// deadline returns the wrong kind of error.
package drivertest
