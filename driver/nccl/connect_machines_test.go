package nccl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/sys/systest"
)

// These tests treat the ranks of this machine as if they were on separate machines, and run other
// tests like that in child processes. On real GPUs, such ranks share memory through fabric handles.
// These need an IMEX channel: a device of NVIDIA's service for memory between machines.

// machinesVariable is an environment variable. If it is set, each rank behaves as if it ran on a
// separate machine.
const machinesVariable = "SYMMEM_TEST_MACHINES"

// isOneMachine reports whether machinesVariable is unset.
//
// Ranks on separate machines compare calls over TCP before they launch them. A test in which ranks
// launch calls in different orders must therefore disable the comparison.
func isOneMachine() bool { return os.Getenv(machinesVariable) == "" }

// applyMachinesVariable gives each rank a machine if machinesVariable is set. TestMain calls it
// before the tests.
func applyMachinesVariable() {
	if !isOneMachine() {
		hostID = func(rank int) string { return fmt.Sprintf("machine %d", rank) }
	}
}

// fabricTests is a -test.run pattern for tests of the direct path that also work when the ranks
// are on separate machines. The script bench/gpu/fabric.sh runs more of them.
var fabricTests = strings.Join([]string{
	"^TestStreamsTakeTurns$", "^TestPathsMix$", "^TestLargeCallsAreCaptured$",
	"^TestGroupsRunConcurrently$", "^TestNormsAreCaptured$", "^TestNormsThatDifferFail$",
}, "|")

// mismatchTests is a -test.run pattern for the contract tests in which ranks launch different
// calls.
const mismatchTests = "^TestContract$/^mistakes$/MismatchError_and/^(count|path|type)_of"

// TestDirectPathBetweenMachinesOfAFabric runs the fabricTests and the mismatchTests in child
// processes where each rank is on a separate machine.
func TestDirectPathBetweenMachinesOfAFabric(t *testing.T) {
	needFabric(t)
	for _, pattern := range []string{fabricTests, mismatchTests} {
		c := systest.Command(t, 5*time.Minute, os.Args[0], "-test.short", "-test.timeout=4m",
			"-test.v", // the output then shows whether any test has been run
			"-test.run="+pattern)
		c.Env = append(os.Environ(), machinesVariable+"=1", "SOFTGPU_FABRIC=1")
		output, err := c.CombinedOutput()
		if err != nil {
			t.Errorf("tests %s: %v\n%s", pattern, err, output)
		} else if !strings.Contains(string(output), "--- PASS") {
			t.Errorf("tests %s: no test was run\n%s", pattern, output)
		}
	}
}

// needFabric skips the test if the GPUs do not support fabric handles, or if the process sees no
// IMEX channel. If fabric handles are unavailable for another reason, the test fails.
func needFabric(t *testing.T) {
	t.Helper()
	if usesSoftGPU(t) {
		return
	}

	d := newTestGroup(t, 1, time.Minute).opened[0].device
	reason := d.gpu.NoFabricReason
	if reason == "" {
		return
	}

	channels, globErr := filepath.Glob("/dev/nvidia-caps-imex-channels/channel*")
	hasNoChannel := len(channels) == 0 && globErr == nil
	needsChannel := strings.Contains(reason, "IMEX channel") && hasNoChannel
	isUnsupported := strings.Contains(reason, "does not support fabric handles")
	if !needsChannel && !isUnsupported {
		t.Fatalf("fabric handles are unavailable: %v (IMEX channels %q, glob error %v)", reason, channels,
			globErr)
	}

	t.Skip(fmt.Errorf("fabric handles: %s: %w", reason, driver.ErrUnsupported))
}

// inSeparateMachinesProcess is like inChildProcess, but sets machinesVariable in the child process
// and skips the test without fabric handles. If machinesVariable is already set, it returns true.
func inSeparateMachinesProcess(t *testing.T) bool {
	t.Helper()
	if !isOneMachine() {
		return true
	}

	needFabric(t)
	return inChildProcess(t, machinesVariable+"=1", "SOFTGPU_FABRIC=1")
}

// TestTimeoutNamesAMissingRankOfAnotherMachine calls Connect only on rank 0. The TimeoutError must
// name rank 1.
func TestTimeoutNamesAMissingRankOfAnotherMachine(t *testing.T) {
	if !inSeparateMachinesProcess(t) {
		return
	}

	w := newTestGroup(t, 2, time.Second)
	group := driver.GroupConfig{ID: "alone", Ranks: []int{0, 1}, Rank: 0}
	_, err := w.opened[0].device.Connect(t.Context(), group)
	var timeoutErr *driver.TimeoutError
	isTimeout := errors.As(err, &timeoutErr)
	if !isTimeout || !slices.Equal(timeoutErr.Missing, []int{1}) {
		t.Errorf("Connect = %v, want a TimeoutError that names rank 1", err)
	}
}

// TestRecordedCallsBetweenMachinesAreCompared records a direct call on rank 0 and a plain call on
// rank 1, while another library captures a stream. Record must return a MismatchError on both
// ranks, because ranks on separate machines compare calls when they are recorded.
func TestRecordedCallsBetweenMachinesAreCompared(t *testing.T) {
	if !inSeparateMachinesProcess(t) {
		return
	}

	w := newGroup(t, 2, 10*time.Second)
	w.must(func(m *testRank) error {
		m.group.SetCheck(true)
		foreign, err := m.newForeignStreams(1)
		if err != nil {
			return err
		}

		path := driver.PathDirect
		if m.rank == 1 {
			path = driver.PathPlain
		}

		plan, err := prepare(m.group, driver.Call{
			Operation: driver.Barrier, DataType: driver.Uint8, Path: path,
			Digest: uint64(m.rank), // differs, because the calls differ
		})
		if err != nil {
			return err
		}

		err = foreign[0].capture(func() error {
			recordErr := m.group.(driver.Recorder).Record(foreign[0].stream, plan)
			if !errors.As(recordErr, new(*driver.MismatchError)) {
				t.Errorf("Record of a mismatched call on rank %d = %v, want a MismatchError", m.rank,
					recordErr)
			}

			return nil
		})
		return errors.Join(err, finish(foreign...))
	})
}
