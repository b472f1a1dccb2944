// Package drivertest tests the contract that every backend must satisfy. The contract is
// documented with the interfaces in package driver.
//
// A backend's tests call Run with a Harness, which opens the device of a rank and lists the
// backend's capabilities. Ranks are goroutines of the test process and share a Store, which this
// package provides. Tests access device memory only through Stream.Copy and Stream.Fill, because
// the host may be unable to access it directly.
//
// As an example, this package's own tests contain the smallest backend that passes.
//
// Tests never sleep. If a wait must end because of its deadline, the test lets the deadline
// expire and checks the error. If a wait must end for any other reason, its deadline is so long
// that it expires only if the test fails; the wait then returns the wrong kind of error.
package drivertest
