// Package systest starts processes for tests. Each process has a deadline. A process that exceeds
// it prints its stacks.
package systest
