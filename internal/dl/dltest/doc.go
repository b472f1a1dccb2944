// Package dltest builds shared objects with gcc, for testing bindings to C libraries. Such an
// object implements the functions of a C header. They record their arguments and return results
// that the test has set.
package dltest
