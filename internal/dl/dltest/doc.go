// Package dltest builds shared objects for tests of bindings. Their functions note down what they
// are called with, as a C compiler that reads the real declarations passes it, and answer as the
// test wants. It needs gcc.
package dltest
