// Package drivertest tests the contract that every backend must satisfy: the documentation of the
// interfaces in package driver, as tests.
//
// The tests of a backend call Run with a Harness, which opens the device of a rank and lists the
// backend's capabilities. Ranks are goroutines in the test process; the suite supplies the store
// that they share. It accesses device memory only through Stream.Copy and Stream.Fill, so it also
// runs where the host cannot access that memory.
//
// The tests of this package contain the smallest backend that passes, as an example.
//
// Tests never wait for time to pass. If a wait must end by a deadline, the test lets it expire and
// checks the error. If a wait must end at once, the deadline is far away, so that a wait which
// only the deadline ends fails with the wrong kind of error.
package drivertest
