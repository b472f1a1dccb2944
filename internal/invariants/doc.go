// Package invariants says whether a build checks itself where that costs time: with the tag
// invariants locks check their order (package ranked), a mapping, window or segment that is closed
// twice by our own code panics, and mappings remember where they were made (package leaktest).
package invariants
