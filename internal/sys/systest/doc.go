// Package systest starts processes for tests. If a process exceeds its deadline, it prints its
// stacks.
package systest
