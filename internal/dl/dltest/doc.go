// Package dltest builds shared objects with gcc for tests of bindings. Such an object implements
// the functions that a C header declares: they record their arguments and return results that the
// test has set.
package dltest
