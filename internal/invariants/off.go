//go:build !invariants

package invariants

// Enabled reports whether the build has the tag invariants.
const Enabled = false
