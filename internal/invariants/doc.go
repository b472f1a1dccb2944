// Package invariants reports whether the build has the tag invariants, which enables expensive
// checks: of lock order (package ranked), of double closes, and of leaks (package leaktest).
package invariants
