// Package systest starts processes for tests, which print their stacks if they exceed their
// deadline.
package systest
