// Package drivertest tests the contract that every backend must satisfy. The contract is
// documented with the interfaces in package driver.
//
// A backend's tests call Run with a Harness, which opens the device of a rank and lists the
// backend's capabilities. Ranks are goroutines of the test process and share a Store, which this
// package provides. Tests access device memory only through Stream.Copy and Stream.Fill, because
// the host may be unable to access it directly.
//
// As an example, this package's tests contain a minimal backend that satisfies the contract.
//
// Tests never sleep. If a wait is expected to time out, the test lets the deadline expire and
// checks the error. If a wait is expected to end for any other reason, its deadline is so long that
// it expires only if the test fails, in which case the wait returns the wrong kind of error.
package drivertest
