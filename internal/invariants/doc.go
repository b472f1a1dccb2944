// Package invariants reports whether a build has the tag invariants, which enables expensive
// internal checks: locks check the order in which they are acquired (package ranked), symmem panics
// if its own code closes a mapping, window or segment twice, and mappings record where they were
// made (package leaktest).
package invariants
