// Package systest starts processes for tests.
package systest
