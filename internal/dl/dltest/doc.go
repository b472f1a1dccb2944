// Package dltest builds shared objects for tests of bindings, with gcc. A shared object implements
// the functions that a C header declares. The functions record their arguments and return results
// that the test has set.
package dltest
