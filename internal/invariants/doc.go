// Package invariants reports whether a build has the tag invariants, which enables expensive
// internal checks: locks check their order (package ranked), closing a mapping, window or segment
// twice panics if symmem's own code does it, and mappings record where they were made (package
// leaktest).
package invariants
