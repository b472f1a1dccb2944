package nccl

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// machinesVariable gives each rank of the tests a machine of its own, as far as this package knows:
// ranks hear of each other over TCP, and reach each other's memory by fabric handles. On GPUs that
// takes an IMEX channel (bench/gpu/fabric.sh).
const machinesVariable = "SYMMEM_TEST_MACHINES"

// ofOneMachine tells whether ranks share a machine. Those that do not compare over TCP before they
// launch, so tests in which ranks launch in orders of their own go without the check then.
func ofOneMachine() bool { return os.Getenv(machinesVariable) == "" }

// spreadRanks does what machinesVariable says.
func spreadRanks() {
	if !ofOneMachine() {
		hostID = func(rank int) string { return fmt.Sprintf("machine %d", rank) }
	}
}

// betweenMachines are tests of the direct path that hold there, too. bench/gpu/fabric.sh has more.
var betweenMachines = strings.Join([]string{
	"^TestDirectIsRight$", "^TestARankThatNeverComesIsNamed$", "^TestStreamsTakeTurns$",
	"^TestPathsMix$", "^TestEagerAndCapturedCallsMix$", "^TestLargeCallsAreCaptured$",
	"^TestGroupsWorkAtOnce$", "^TestNormsAreCaptured$", "^TestNormsThatDifferFail$",
}, "|")

// differing are those of the contract in which ranks launch calls that differ.
const differing = "^TestContract$/^mistakes$/MismatchError_(and|everywhere)|after_a_mismatch"

func TestKernelsReachOtherMachinesOfAFabric(t *testing.T) {
	if !soft(t) {
		t.Skip("bench/gpu/fabric.sh runs these on GPUs that have an IMEX channel")
	}
	for _, tests := range []string{betweenMachines, differing} {
		c := exec.CommandContext(t.Context(), os.Args[0], "-test.short", "-test.timeout=4m",
			"-test.v", "-test.run="+tests)
		c.Env = append(os.Environ(), machinesVariable+"=1", "SOFTGPU_FABRIC=1")
		said, err := c.CombinedOutput()
		if err != nil || !strings.Contains(string(said), "--- PASS") {
			t.Errorf("%v\n%s", err, said)
		}
	}
}
