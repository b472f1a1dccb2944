// Package systest starts processes for tests. Each has a deadline, and a process that exceeds it
// prints its stacks.
package systest
