// Package drivertest tests the contract that every backend must satisfy, as documented with the
// interfaces in package driver.
//
// A backend's tests call Run with a Harness, which opens the device of a rank and lists the
// backend's capabilities. Ranks are goroutines of the test process and share a Store, which the
// suite supplies. Tests access device memory only through Stream.Copy and Stream.Fill, because the
// host may be unable to access it directly.
//
// As an example, the tests of this package contain the smallest backend that passes.
//
// Tests never sleep. If a wait must end because of its deadline, the test lets the deadline expire
// and checks the error. If a wait must end for any other reason, the deadline is long, and a wait
// that lasts until then fails the test because it returns the wrong kind of error.
package drivertest
