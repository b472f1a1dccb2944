// Package systest starts processes for tests. A process that exceeds its deadline prints its
// stacks.
package systest
