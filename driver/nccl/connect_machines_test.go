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

// machinesVariable makes each rank of a test process behave as if it ran on a separate machine.
// Such ranks share memory through fabric handles.
const machinesVariable = "SYMMEM_TEST_MACHINES"

func isOneMachine() bool { return os.Getenv(machinesVariable) == "" }

func applyMachinesVariable() {
	if !isOneMachine() {
		hostID = func(rank int) string { return fmt.Sprintf("machine %d", rank) }
	}
}

// fabricTests is a pattern for tests of the direct path. bench/gpu/fabric.sh runs more of them.
var fabricTests = strings.Join([]string{
	"^TestStreamsTakeTurns$", "^TestPathsMix$", "^TestLargeCallsAreCaptured$",
	"^TestGroupsRunConcurrently$", "^TestNormsAreCaptured$", "^TestNormsThatDifferFail$",
}, "|")

// mismatchTests is a pattern for tests in which ranks launch different calls.
const mismatchTests = "^TestContract$/^mistakes$/MismatchError_and/^(count|path|type)_of"

func TestDirectPathBetweenMachinesOfAFabric(t *testing.T) {
	needFabric(t)
	for _, pattern := range []string{fabricTests, mismatchTests} {
		c := systest.Command(t, 5*time.Minute, os.Args[0], "-test.short", "-test.timeout=4m",
			"-test.v", // lists the tests that were run
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

// needFabric skips the test if the GPUs do not support fabric handles, or the process has no IMEX
// channel (NVIDIA's device for memory between machines). If fabric handles are unavailable for
// another reason, the test fails.
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
	isChannelMissing := strings.Contains(reason, "IMEX channel") && len(channels) == 0 &&
		globErr == nil
	isUnsupported := strings.Contains(reason, "does not support fabric handles")
	if isChannelMissing || isUnsupported {
		t.Skip(fmt.Errorf("fabric handles: %s: %w", reason, driver.ErrUnsupported))
	}

	t.Fatalf("fabric handles are unavailable: %v (IMEX channels %q, glob error %v)", reason, channels,
		globErr)
}

// inSeparateMachinesProcess reruns the test in a child process with machinesVariable. It returns
// true in that process.
func inSeparateMachinesProcess(t *testing.T) bool {
	t.Helper()
	if !isOneMachine() {
		return true
	}

	needFabric(t)
	return inChildProcess(t, machinesVariable+"=1", "SOFTGPU_FABRIC=1")
}

func TestTimeoutNamesAMissingRankOfAnotherMachine(t *testing.T) {
	if !inSeparateMachinesProcess(t) {
		return
	}

	group := newTestGroup(t, 2, time.Second)
	config := driver.GroupConfig{ID: "alone", Ranks: []int{0, 1}, Rank: 0}
	_, err := group.opened[0].device.Connect(t.Context(), config) // rank 1 does not call Connect
	var timeoutErr *driver.TimeoutError
	isTimeout := errors.As(err, &timeoutErr)
	if !isTimeout || !slices.Equal(timeoutErr.Missing, []int{1}) {
		t.Errorf("Connect = %v, want a TimeoutError that names rank 1", err)
	}
}

// Rank 0 and rank 1 record a call on different paths in the capture of another library.
func TestRecordedCallsBetweenMachinesAreCompared(t *testing.T) {
	if !inSeparateMachinesProcess(t) {
		return
	}

	group := newGroup(t, 2, 10*time.Second)
	group.must(func(m *testRank) error {
		m.group.SetCheck(true)
		streams, err := m.newForeignStreams(1)
		if err != nil {
			return err
		}

		path := driver.PathDirect
		if m.rank == 1 {
			path = driver.PathPlain
		}

		plan, err := prepare(m.group, driver.Call{
			Operation: driver.Barrier, DataType: driver.Uint8, Path: path,
			Digest: uint64(m.rank), // differs between the ranks, like the path
		})
		if err != nil {
			return err
		}

		foreign := streams[0]
		captureErr := foreign.capture(func() error {
			recordErr := m.group.(driver.Recorder).Record(foreign.stream, plan)
			if !errors.As(recordErr, new(*driver.MismatchError)) {
				t.Errorf("Record of a mismatched call on rank %d = %v, want a MismatchError", m.rank,
					recordErr)
			}

			return nil
		})
		return errors.Join(captureErr, finish(streams...))
	})
}
