// Package drivertest is the contract that every backend passes: the interfaces of package driver,
// written as tests.
//
// A backend's own tests call Run with a Harness, which says how to open the device of a rank and
// what the backend can do. Ranks are goroutines of the test's process; the suite brings the store
// that they share. Device memory is touched through Stream.Copy and Stream.Fill alone, so the
// suite runs unchanged where the host cannot see it.
//
// The smallest backend that passes is in this package's own tests, as an example.
//
// A test never waits for time to pass. Where a deadline has to end a wait, the test lets it, and
// judges the error; where something has to happen at once, the deadline is far away, so that a
// wait which only the deadline ends shows as an error of the wrong kind.
package drivertest
