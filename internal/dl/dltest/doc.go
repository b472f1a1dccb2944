// Package dltest builds shared objects with gcc, for tests of bindings. A shared object implements
// the functions that a C header declares. The functions record their arguments and return results
// that the test has set.
package dltest
