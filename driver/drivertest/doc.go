// Package drivertest tests the contract that every backend must satisfy, as documented with the
// interfaces in package driver.
//
// The tests of a backend call Run with a Harness. The Harness opens the device of a rank and lists
// the backend's capabilities. Ranks are goroutines in the test process. The suite supplies the
// store that they share. It accesses device memory only through Stream.Copy and Stream.Fill,
// because the host may not be able to access the memory.
//
// As an example, the tests of this package contain the smallest backend that passes.
//
// Tests never sleep. If a deadline must end a wait, the test lets the deadline expire and checks
// the error. If something else must end a wait, the deadline is far away. A wait that lasts until
// the deadline then returns the wrong kind of error.
package drivertest
