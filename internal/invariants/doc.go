// Package invariants reports whether the build has the tag invariants, which enables expensive
// checks: of lock order (package ranked), double closes, and leaks (package leaktest).
package invariants
