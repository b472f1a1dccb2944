//go:build !amd64

package reduce

import "testing"

// eachLevel runs a test with the portable code, which is all there is.
func eachLevel(t *testing.T, run func(t *testing.T)) {
	t.Helper()
	t.Run("portable", run)
}
