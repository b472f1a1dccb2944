// Package invariants reports whether the build has the tag invariants, which enables expensive
// checks.
package invariants
