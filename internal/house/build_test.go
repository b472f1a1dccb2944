package house

import (
	"os"
	"os/exec"
	"testing"
)

// TestTheHouseBuildsOnOtherProcessors compiles everything, tests too, for a processor that has no
// assembly of ours, with the portable kernels.
func TestTheHouseBuildsOnOtherProcessors(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles everything for another processor")
	}
	c := exec.CommandContext(t.Context(), "go", "vet", "./...")
	c.Dir = "../.."
	c.Env = append(os.Environ(), "GOARCH=arm64", "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("go vet for arm64: %v\n%s", err, out)
	}
}
