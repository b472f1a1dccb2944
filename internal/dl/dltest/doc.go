// Package dltest builds shared objects that stand in for C libraries in tests. Their functions
// record their arguments and return results that the test has set.
package dltest
