//go:build invariants

package invariants

// Enabled says that the build checks itself.
const Enabled = true
