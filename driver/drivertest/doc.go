// Package drivertest tests the contract of backends, which the interfaces in package driver
// document.
//
// A backend's tests call Run with a Harness, which opens the device of a rank and lists the
// backend's capabilities. Ranks are goroutines of the test process. Tests access device memory only
// through Stream.Copy and Stream.Fill. This package's tests contain a minimal backend as an
// example.
//
// Tests never sleep. A wait that should time out has a short deadline. Other deadlines expire only
// if the test fails.
package drivertest
