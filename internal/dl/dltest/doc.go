// Package dltest builds shared objects for tests of bindings. Their functions record the arguments
// that a C compiler passes according to the real declarations, and return results that the test
// sets. It needs gcc.
package dltest
