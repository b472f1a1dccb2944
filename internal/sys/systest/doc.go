// Package systest starts processes for tests. Each has a deadline, and one that is over it says
// where it was.
package systest
